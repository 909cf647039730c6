// All queues; add one.

import * as api from "../api.js";
import { h, section } from "../dom.js";
import { count, link, rate, shortNode } from "../format.js";
import { form, notice, readOnly } from "../forms.js";
import { queueBadges, state } from "../badges.js";
import { ListPage } from "../table.js";
import { vhostField } from "./vhostfield.js";

const RATES = ["publish", "deliver_get", "ack"].map((name) => `message_stats.${name}_details.rate`);
const COLUMNS = [
  "name",
  "vhost",
  "durable",
  "auto_delete",
  "exclusive",
  "arguments",
  "node",
  "policy",
  "operator_policy",
  "effective_policy_definition",
  "state",
  "messages",
  "messages_ready",
  "messages_unacknowledged",
  "consumers",
  "slave_nodes",
  "synchronised_slave_nodes",
  "sync_progress",
  ...RATES,
].join(",");

/** What may be set on a queue, with the type of its value. */
export const ARGUMENT_KINDS = {
  "x-message-ttl": "Number",
  "x-expires": "Number",
  "x-max-length": "Number",
  "x-max-length-bytes": "Number",
  "x-overflow": "String",
  "x-dead-letter-exchange": "String",
  "x-dead-letter-routing-key": "String",
  "x-max-priority": "Number",
  "x-single-active-consumer": "Boolean",
  "x-queue-type": "String",
  "x-queue-master-locator": "String",
};

export default async function page(context) {
  const columns = [
    { label: "Virtual host", sort: "vhost", value: (row) => row.vhost },
    {
      label: "Name",
      main: true,
      sort: "name",
      value: (row) => h("a", { href: link("queues", row.vhost, row.name) }, row.name),
    },
    { label: "Node", sort: "node", value: (row) => shortNode(row.node) },
    { label: "Features", tags: true, value: (row) => queueBadges(row) },
    { label: "State", sort: "state", value: (row) => progress(row) },
    { label: "Ready", sort: "messages_ready", num: true, value: (row) => count(row.messages_ready) },
    {
      label: "Unacked",
      sort: "messages_unacknowledged",
      num: true,
      value: (row) => count(row.messages_unacknowledged),
    },
    { label: "Total", sort: "messages", num: true, value: (row) => count(row.messages) },
    { label: "Consumers", sort: "consumers", num: true, value: (row) => count(row.consumers) },
    {
      label: "Incoming",
      sort: RATES[0],
      num: true,
      value: (row) => rate(row.message_stats?.publish_details?.rate),
    },
    {
      label: "Deliver / get",
      sort: RATES[1],
      num: true,
      value: (row) => rate(row.message_stats?.deliver_get_details?.rate),
    },
    { label: "Ack", sort: RATES[2], num: true, value: (row) => rate(row.message_stats?.ack_details?.rate) },
  ];
  const list = new ListPage(context, columns, {
    key: (row) => `${row.vhost}/${row.name}`,
    caption: "Queues",
    noun: "queues",
    columns: COLUMNS,
    empty: "no queues",
    make: (query) => `queues${context.vhost ? `/${api.path(context.vhost)}` : ""}?${query}`,
  });
  const add = context.may.change ? await addForm(context, list) : readOnly("Adding a queue", "management");
  return h(
    "div",
    {},
    h("h1", {}, "Queues"),
    list.element,
    h("div", { class: "gap" }),
    section("Add a new queue", { open: false, id: "add" }, add),
  );
}

function progress(row) {
  if (row.state !== "syncing" || row.sync_progress === null || row.sync_progress === undefined)
    return state(row.state);
  return h("span", { class: "state warn" }, `syncing ${Math.floor(row.sync_progress)} %`);
}

async function addForm(context, list) {
  const keys = h(
    "datalist",
    { id: "queue-arguments" },
    Object.keys(ARGUMENT_KINDS).map((value) => h("option", { value })),
  );
  const element = form(
    [
      await vhostField(context),
      { name: "name", label: "Name", required: true },
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
      {
        name: "arguments",
        label: "Arguments",
        kind: "pairs",
        keys: "queue-arguments",
        kinds: ARGUMENT_KINDS,
        hint: "Mirrors come from policies: add one with ha-mode under Admin.",
      },
    ],
    "Add queue",
    async (found) => {
      await api.put(`queues/${api.path(found.vhost, found.name)}`, {
        durable: found.durable === "true",
        auto_delete: found.auto_delete,
        arguments: found.arguments,
      });
      notice(`Queue ${found.name} is there`);
      list.open();
    },
  );
  element.append(keys);
  return element;
}
