// The table of consumers, as the pages of queues and channels have it.

import { h } from "../dom.js";
import { count, link, pairs } from "../format.js";
import { endpoints } from "../badges.js";
import { DataTable } from "../table.js";

export function consumersTable({ withQueue = false } = {}) {
  const columns = [
    { label: "Consumer tag", long: true, value: (row) => row.consumer_tag },
    withQueue
      ? {
          label: "Queue",
          value: (row) =>
            h(
              "a",
              { href: link("queues", row.queue?.vhost ?? "/", row.queue?.name ?? "") },
              row.queue?.name ?? "",
            ),
        }
      : {
          label: "Channel",
          value: (row) =>
            h(
              "a",
              { href: link("channels", row.channel_details?.name ?? "") },
              endpoints(row.channel_details?.name ?? "?"),
            ),
        },
    { label: "Ack required", value: (row) => (row.ack_required ? "yes" : "no") },
    { label: "Exclusive", value: (row) => (row.exclusive ? "yes" : "no") },
    { label: "Prefetch", num: true, value: (row) => count(row.prefetch_count) },
    { label: "Active", value: (row) => (row.active ? "yes" : "no") },
    { label: "Arguments", long: true, value: (row) => pairs(row.arguments).join(", ") },
  ];
  return new DataTable(columns, {
    key: (row) => `${row.channel_details?.name} ${row.consumer_tag}`,
    caption: "Consumers",
    empty: "no consumers",
  });
}
