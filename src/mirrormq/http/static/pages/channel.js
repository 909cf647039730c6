// One channel, with its consumers.

import { path } from "../api.js";
import { facts, h, putChanged, section } from "../dom.js";
import { count, link, rate } from "../format.js";
import { endpoints, state } from "../badges.js";
import { Rates } from "../charts.js";
import { consumersTable } from "./consumers.js";
import { mode, prefetch } from "./channels.js";

export default function page(context) {
  const [name] = context.parameters;
  const details = h("div");
  const consumers = consumersTable({ withQueue: true });
  const rates = new Rates();
  context.follow([`channels/${path(name)}`], (_, row) => {
    context.problem(null);
    const now = rates.take(row.message_stats);
    putChanged(
      details,
      facts([
        [
          "Connection",
          h(
            "a",
            { href: link("connections", row.connection_details?.name ?? name.replace(/ \(\d+\)$/, "")) },
            endpoints(row.connection_details?.name ?? "its connection"),
          ),
        ],
        ["Node", row.node],
        ["Virtual host", row.vhost],
        ["User name", row.user],
        ["State", state(row.state)],
        ["Mode", mode(row) || "plain"],
        ["Prefetch", prefetch(row) || "unlimited"],
        ["Consumers", count(row.consumer_count)],
        ["Unacked", count(row.messages_unacknowledged)],
        ["Unconfirmed", count(row.messages_unconfirmed)],
        ["Uncommitted", count(row.messages_uncommitted)],
        ["Acks uncommitted", count(row.acks_uncommitted)],
        ["Publish", now.publish === undefined ? null : rate(now.publish)],
        ["Deliver / get", now.deliver_get === undefined ? null : rate(now.deliver_get)],
      ]),
    );
    consumers.update(row.consumer_details ?? []);
  });
  return h(
    "div",
    {},
    h("h1", {}, `Channel ${name}`),
    section("Details", {}, details),
    section("Consumers", {}, consumers.element),
  );
}
