// All channels of the cluster.

import { h } from "../dom.js";
import { count, link, rate, shortNode } from "../format.js";
import { endpoints, state } from "../badges.js";
import { path } from "../api.js";
import { ListPage } from "../table.js";

const COLUMNS =
  "name,user,vhost,node,state,confirm,transactional,prefetch_count,global_prefetch_count,consumer_count," +
  "messages_unacknowledged,messages_unconfirmed,message_stats.publish_details.rate," +
  "message_stats.deliver_get_details.rate,message_stats.ack_details.rate";

export default function page(context) {
  const columns = [
    {
      label: "Channel",
      main: true,
      sort: "name",
      value: (row) => h("a", { href: link("channels", row.name) }, endpoints(row.name)),
    },
    { label: "Node", sort: "node", value: (row) => shortNode(row.node) },
    { label: "Virtual host", sort: "vhost", value: (row) => row.vhost },
    { label: "User name", sort: "user", value: (row) => row.user },
    { label: "Mode", title: "C: confirms, T: transactions", value: (row) => mode(row) },
    { label: "State", sort: "state", value: (row) => state(row.state) },
    { label: "Consumers", sort: "consumer_count", num: true, value: (row) => count(row.consumer_count) },
    {
      label: "Unconfirmed",
      sort: "messages_unconfirmed",
      num: true,
      value: (row) => count(row.messages_unconfirmed),
    },
    { label: "Prefetch", num: true, value: (row) => prefetch(row) },
    {
      label: "Unacked",
      sort: "messages_unacknowledged",
      num: true,
      value: (row) => count(row.messages_unacknowledged),
    },
    { label: "Publish", num: true, value: (row) => rate(row.message_stats?.publish_details?.rate) },
    { label: "Deliver / get", num: true, value: (row) => rate(row.message_stats?.deliver_get_details?.rate) },
    { label: "Ack", num: true, value: (row) => rate(row.message_stats?.ack_details?.rate) },
  ];
  const list = new ListPage(context, columns, {
    key: (row) => row.name,
    caption: "Channels",
    noun: "channels",
    empty: "no channels",
    columns: COLUMNS,
    make: (query) =>
      context.vhost ? `vhosts/${path(context.vhost)}/channels?${query}` : `channels?${query}`,
  });
  return h("div", {}, h("h1", {}, "Channels"), list.element);
}

export function mode(row) {
  if (!row.confirm && !row.transactional) return "";
  return h(
    "abbr",
    { class: "badge", title: row.confirm ? "publisher confirms" : "transactions" },
    row.confirm ? "C" : "T",
  );
}

export function prefetch(row) {
  const shown = row.prefetch_count ? count(row.prefetch_count) : "";
  return row.global_prefetch_count ? `${shown} (global ${count(row.global_prefetch_count)})` : shown;
}
