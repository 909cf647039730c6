// All connections of the cluster.

import { h } from "../dom.js";
import { bytes, count, link, shortNode } from "../format.js";
import { endpoints, state } from "../badges.js";
import { path } from "../api.js";
import { ListPage } from "../table.js";

const COLUMNS =
  "name,user,vhost,node,state,ssl,protocol,channels,recv_oct,send_oct," +
  "recv_oct_details.rate,send_oct_details.rate," +
  "user_provided_name,client_properties.product,client_properties.version,client_properties.connection_name";

export default function page(context) {
  const columns = [
    {
      label: "Name",
      main: true,
      sort: "name",
      value: (row) =>
        h(
          "span",
          {},
          h("a", { href: link("connections", row.name) }, endpoints(row.name)),
          row.user_provided_name ? h("div", { class: "soft" }, row.user_provided_name) : null,
        ),
    },
    { label: "Node", sort: "node", value: (row) => shortNode(row.node) },
    { label: "Virtual host", sort: "vhost", value: (row) => row.vhost },
    { label: "User name", sort: "user", value: (row) => row.user },
    { label: "State", sort: "state", value: (row) => state(row.state) },
    { label: "TLS", value: (row) => (row.ssl ? "●" : "○") },
    { label: "Protocol", tight: true, value: (row) => row.protocol },
    {
      label: "Client",
      long: true,
      value: (row) =>
        [row.client_properties?.product, row.client_properties?.version].filter(Boolean).join(" "),
    },
    { label: "Channels", sort: "channels", num: true, value: (row) => count(row.channels) },
    { label: "From client", sort: "recv_oct", num: true, value: (row) => flow(row, "recv_oct") },
    { label: "To client", sort: "send_oct", num: true, value: (row) => flow(row, "send_oct") },
  ];
  const list = new ListPage(context, columns, {
    key: (row) => row.name,
    caption: "Connections",
    noun: "connections",
    empty: "no connections",
    columns: COLUMNS,
    make: (query) =>
      context.vhost ? `vhosts/${path(context.vhost)}/connections?${query}` : `connections?${query}`,
  });
  return h("div", {}, h("h1", {}, "Connections"), list.element);
}

export function flow(row, name) {
  const now = row[`${name}_details`]?.rate;
  return now === undefined ? bytes(row[name]) : `${bytes(Math.round(now))}/s`;
}
