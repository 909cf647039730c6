// Policies and operator policies: list, add, edit, delete.

import * as api from "../api.js";
import { h, section } from "../dom.js";
import { pairs } from "../format.js";
import { attempt, confirmed, form, notice, readOnly } from "../forms.js";
import { DataTable } from "../table.js";
import { admin } from "./admin.js";
import { vhostField } from "./vhostfield.js";

const KINDS = {
  "ha-mode": "String",
  "ha-params": "Number",
  "ha-sync-mode": "String",
  "ha-promote-on-shutdown": "String",
  "ha-promote-on-failure": "String",
  "ha-min-in-sync": "Number",
  "ha-replication": "String",
  "ha-salvage": "String",
  "ha-mirror-timeout": "Number",
  "message-ttl": "Number",
  expires: "Number",
  "max-length": "Number",
  "max-length-bytes": "Number",
  overflow: "String",
  "dead-letter-exchange": "String",
  "dead-letter-routing-key": "String",
  "queue-master-locator": "String",
  "alternate-exchange": "String",
  "queue-mode": "String",
};

const PRESETS = [
  ["Mirror on all nodes", { "ha-mode": "all", "ha-sync-mode": "automatic" }],
  ["Two mirrors", { "ha-mode": "exactly", "ha-params": 3, "ha-sync-mode": "automatic" }],
  ["Message TTL", { "message-ttl": 60000 }],
  ["Length limit", { "max-length": 10000 }],
];

export default async function page(context) {
  const vhosts = await vhostField(context);
  return admin(
    "policies",
    h("h1", {}, "Policies"),
    part(context, vhosts, {
      path: "policies",
      title: "User policies",
      one: "policy",
      may: context.may.setPolicies,
      who: "policymaker",
    }),
    part(context, vhosts, {
      path: "operator-policies",
      title: "Operator policies",
      one: "operator policy",
      may: context.may.administer,
      who: "administrator",
    }),
  );
}

function part(context, vhosts, about) {
  let editor = null;
  const edit = section(`Add / update ${about.one}`, { open: about.path === "policies" }, []);
  const table = new DataTable(
    [
      { label: "Virtual host", value: (row) => row.vhost },
      { label: "Name", main: true, value: (row) => row.name },
      { label: "Pattern", long: true, value: (row) => h("code", {}, row.pattern) },
      { label: "Apply to", value: (row) => row["apply-to"] },
      {
        label: "Definition",
        long: true,
        value: (row) =>
          h(
            "ul",
            { class: "lines" },
            pairs(row.definition).map((line) => h("li", {}, line)),
          ),
      },
      { label: "Priority", num: true, value: (row) => String(row.priority) },
      { label: "", value: (row) => (about.may ? buttons(row) : "") },
    ],
    {
      key: (row) => `${row.vhost}/${row.name}`,
      caption: about.title,
      empty: `no ${about.title.toLowerCase()}`,
    },
  );

  async function load() {
    await attempt(async () => {
      const found = await api.get(about.path);
      table.update(context.vhost ? found.filter((row) => row.vhost === context.vhost) : found);
    });
  }

  function buttons(row) {
    return h(
      "span",
      { class: "buttons" },
      h(
        "button",
        { type: "button", "aria-label": `Edit ${about.one} ${row.name}`, onclick: () => fill(row) },
        "Edit",
      ),
      h(
        "button",
        {
          type: "button",
          "aria-label": `Delete ${about.one} ${row.name}`,
          onclick: async () => {
            if (
              !(await confirmed(
                `Delete this ${about.one}?`,
                `${row.name} in virtual host ${row.vhost}`,
                "Delete",
              ))
            )
              return;
            if (
              await attempt(
                () => api.remove(`${about.path}/${api.path(row.vhost, row.name)}`),
                `${row.name} is gone`,
              )
            )
              load();
          },
        },
        "Delete",
      ),
    );
  }

  function fill(row) {
    edit.open = true;
    const set = editor.fields;
    set.vhost.set(row.vhost);
    set.name.set(row.name);
    set.pattern.set(row.pattern);
    set.applyTo.set(row["apply-to"]);
    set.priority.set(row.priority);
    set.definition.set(row.definition);
    set.pattern.input.focus();
  }

  editor = about.may ? policyForm(vhosts, about, load) : null;
  edit
    .querySelector(".section-body")
    .append(editor ?? readOnly(`Setting ${about.title.toLowerCase()}`, about.who));
  load();
  return section(about.title, {}, table.element, h("div", { class: "gap" }), edit);
}

function policyForm(vhosts, about, done) {
  const keys = `keys-${about.path}`;
  const editor = form(
    [
      { ...vhosts },
      { name: "name", label: "Name", required: true },
      {
        name: "pattern",
        label: "Pattern",
        required: true,
        hint: "A regular expression on names, e.g. ^orders\\.",
      },
      {
        name: "applyTo",
        label: "Apply to",
        kind: "select",
        options:
          about.path === "policies"
            ? [
                ["all", "Exchanges and queues"],
                ["queues", "Queues"],
                ["exchanges", "Exchanges"],
              ]
            : [["queues", "Queues"]],
      },
      { name: "priority", label: "Priority", kind: "number", value: 0 },
      { name: "definition", label: "Definition", kind: "pairs", keys, kinds: KINDS, required: true },
    ],
    `Add / update ${about.one}`,
    async (found) => {
      await api.put(`${about.path}/${api.path(found.vhost, found.name)}`, {
        pattern: found.pattern,
        definition: found.definition,
        priority: found.priority ?? 0,
        "apply-to": found.applyTo,
      });
      notice(`${found.name} is set`);
      await done();
    },
    {
      label: `Add or update ${about.one}`,
      extra:
        about.path === "policies"
          ? PRESETS.map(([label, value]) =>
              h(
                "button",
                {
                  type: "button",
                  class: "link",
                  onclick: () => editor.fields.definition.set(value),
                },
                label,
              ),
            )
          : null,
    },
  );
  editor.append(
    h(
      "datalist",
      { id: keys },
      Object.keys(KINDS).map((value) => h("option", { value })),
    ),
  );
  return editor;
}
