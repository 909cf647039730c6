// All exchanges; add one.

import * as api from "../api.js";
import { h, section } from "../dom.js";
import { exchangeName, exchangePart, link, rate } from "../format.js";
import { form, notice, readOnly } from "../forms.js";
import { exchangeBadges } from "../badges.js";
import { ListPage } from "../table.js";
import { vhostField } from "./vhostfield.js";

export default async function page(context) {
  const columns = [
    { label: "Virtual host", sort: "vhost", value: (row) => row.vhost },
    {
      label: "Name",
      main: true,
      sort: "name",
      value: (row) =>
        h("a", { href: link("exchanges", row.vhost, exchangePart(row.name)) }, exchangeName(row.name)),
    },
    { label: "Type", sort: "type", value: (row) => row.type },
    { label: "Features", tags: true, value: (row) => exchangeBadges(row) },
    {
      label: "Message rate in",
      sort: "message_stats.publish_in_details.rate",
      num: true,
      value: (row) => rate(row.message_stats?.publish_in_details?.rate),
    },
    {
      label: "Message rate out",
      sort: "message_stats.publish_out_details.rate",
      num: true,
      value: (row) => rate(row.message_stats?.publish_out_details?.rate),
    },
  ];
  const list = new ListPage(context, columns, {
    key: (row) => `${row.vhost}/${row.name}`,
    caption: "Exchanges",
    noun: "exchanges",
    make: (query) => `exchanges${context.vhost ? `/${api.path(context.vhost)}` : ""}?${query}`,
  });
  const add = context.may.change
    ? form(
        [
          await vhostField(context),
          { name: "name", label: "Name", required: true },
          {
            name: "type",
            label: "Type",
            kind: "select",
            options: ["direct", "fanout", "topic", "headers", "x-consistent-hash"],
          },
          {
            name: "durable",
            label: "Durability",
            kind: "select",
            options: [
              ["true", "Durable"],
              ["false", "Transient"],
            ],
          },
          { name: "auto_delete", label: "Auto delete", kind: "check" },
          { name: "internal", label: "Internal", kind: "check" },
          { name: "arguments", label: "Arguments", kind: "pairs", hint: "e.g. alternate-exchange" },
        ],
        "Add exchange",
        async (found) => {
          await api.put(`exchanges/${api.path(found.vhost, found.name)}`, {
            type: found.type,
            durable: found.durable === "true",
            auto_delete: found.auto_delete,
            internal: found.internal,
            arguments: found.arguments,
          });
          notice(`Exchange ${found.name} is there`);
          list.open();
        },
      )
    : readOnly("Adding an exchange", "management");
  return h(
    "div",
    {},
    h("h1", {}, "Exchanges"),
    list.element,
    h("div", { class: "gap" }),
    section("Add a new exchange", { open: false }, add),
  );
}
