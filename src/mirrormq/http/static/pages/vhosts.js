// Virtual hosts: list, add, delete.

import * as api from "../api.js";
import { h, section } from "../dom.js";
import { count } from "../format.js";
import { attempt, confirmed, form, notice, readOnly } from "../forms.js";
import { state } from "../badges.js";
import { DataTable } from "../table.js";
import { admin } from "./admin.js";

export default function page(context) {
  const table = new DataTable(
    [
      { label: "Name", main: true, value: (row) => row.name },
      { label: "Description", long: true, value: (row) => row.description ?? "" },
      { label: "Tags", value: (row) => (row.tags ?? []).join(", ") },
      {
        label: "State",
        value: (row) =>
          h(
            "span",
            {},
            Object.entries(row.cluster_state ?? {}).map(([, found]) => state(found)),
          ),
      },
      {
        label: "Default queue type",
        value: (row) => (row.default_queue_type === "undefined" ? "classic" : row.default_queue_type),
      },
      { label: "Mirror of", value: (row) => row.mirror_of || "–" },
      { label: "Messages", num: true, value: (row) => count(row.messages) },
      { label: "", value: (row) => (context.may.administer ? remove(row) : "") },
    ],
    { key: (row) => row.name, caption: "Virtual hosts" },
  );
  const load = () => attempt(async () => table.update(await api.get("vhosts")));

  function remove(row) {
    return h(
      "button",
      {
        type: "button",
        "aria-label": `Delete virtual host ${row.name}`,
        onclick: async () => {
          if (
            !(await confirmed(
              "Delete this virtual host?",
              `${row.name}: all its queues, messages and definitions will be gone.`,
              "Delete",
            ))
          )
            return;
          if (
            await attempt(
              () => api.remove(`vhosts/${api.path(row.name)}`),
              `Virtual host ${row.name} is gone`,
            )
          )
            load();
        },
      },
      "Delete",
    );
  }

  const add = context.may.administer
    ? form(
        [
          { name: "name", label: "Name", required: true },
          { name: "description", label: "Description" },
          { name: "tags", label: "Tags", hint: "With commas" },
        ],
        "Add virtual host",
        async ({ name, ...found }) => {
          await api.put(`vhosts/${api.path(name)}`, found);
          notice(`Virtual host ${name} is there`);
          await load();
          context.vhostsChanged();
        },
      )
    : readOnly("Adding a virtual host", "administrator");
  load();
  return admin(
    "vhosts",
    h("h1", {}, "Virtual Hosts"),
    table.element,
    h("div", { class: "gap" }),
    section("Add a new virtual host", { open: false }, add),
  );
}
