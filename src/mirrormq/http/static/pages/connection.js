// One connection, with its channels; close it with a reason.

import * as api from "../api.js";
import { facts, h, putChanged, section } from "../dom.js";
import { bytes, count, link, moment } from "../format.js";
import { form, notice } from "../forms.js";
import { state } from "../badges.js";
import { DataTable } from "../table.js";

export default function page(context) {
  const [name] = context.parameters;
  const where = `connections/${api.path(name)}`;
  const details = h("div");
  const properties = h("div");
  const channels = new DataTable(
    [
      {
        label: "Channel",
        long: true,
        value: (row) => h("a", { href: link("channels", row.name) }, row.name),
      },
      { label: "State", value: (row) => state(row.state) },
      { label: "Prefetch", num: true, value: (row) => count(row.prefetch_count) },
      { label: "Consumers", num: true, value: (row) => count(row.consumer_count) },
      { label: "Unacked", num: true, value: (row) => count(row.messages_unacknowledged) },
      { label: "Unconfirmed", num: true, value: (row) => count(row.messages_unconfirmed) },
    ],
    { key: (row) => row.name, caption: "Channels of this connection", empty: "no channels" },
  );
  context.follow([where, `${where}/channels`], (place, found) => {
    context.problem(null);
    if (place === 1) {
      channels.update(found);
      return;
    }
    putChanged(
      details,
      facts([
        ["Node", found.node],
        ["Virtual host", found.vhost],
        ["User name", found.user],
        ["State", state(found.state)],
        ["Protocol", found.protocol],
        ["Client-provided name", found.user_provided_name],
        ["Connected at", moment(found.connected_at)],
        ["TLS", found.ssl ? `${found.ssl_protocol ?? "yes"} ${found.ssl_cipher ?? ""}` : "no"],
        ["From", `${found.peer_host}:${found.peer_port}`],
        ["To", `${found.host}:${found.port}`],
        ["Heartbeat", found.timeout === undefined ? null : `${found.timeout} s`],
        ["Frame max", bytes(found.frame_max)],
        ["Channel limit", count(found.channel_max)],
        ["From client", bytes(found.recv_oct)],
        ["To client", bytes(found.send_oct)],
      ]),
    );
    putChanged(
      properties,
      facts(
        Object.entries(found.client_properties ?? {}).map(([key, value]) => [
          key,
          typeof value === "object" ? JSON.stringify(value) : String(value),
        ]),
      ),
    );
  });
  const close = form(
    [{ name: "reason", label: "Reason", hint: "The client is told: 320 CONNECTION_FORCED" }],
    "Force close",
    async ({ reason }) => {
      await api.remove(where, undefined, reason ? { "X-Reason": reason } : undefined);
      notice(`Connection ${name} is closed`);
      context.go("#/connections");
    },
    { danger: true, label: "Close this connection" },
  );
  return h(
    "div",
    {},
    h("h1", {}, `Connection ${name}`),
    section("Details", {}, details),
    section("Channels", {}, channels.element),
    section("Client properties", { open: false }, properties),
    context.may.change ? section("Close this connection", { open: false }, close) : null,
  );
}
