// One user: permissions, topic permissions, password and tags, delete.

import * as api from "../api.js";
import { h, put, section } from "../dom.js";
import { attempt, confirmed, form, notice } from "../forms.js";
import { DataTable } from "../table.js";
import { admin, refused } from "./admin.js";
import { TAGS } from "./users.js";
import { vhostField } from "./vhostfield.js";

export default async function page(context) {
  if (!context.may.administer) return refused("users", "User", "administrator");
  const [name] = context.parameters;
  const where = `users/${api.path(name)}`;
  const user = await api.get(where);
  const tags = h("span", { class: "badges" });
  const drawTags = (found) =>
    put(
      tags,
      found.map((tag) => h("span", { class: "badge" }, tag)),
    );
  drawTags(user.tags);
  return admin(
    "users",
    h("div", { class: "heading" }, h("h1", {}, `User ${name}`), tags),
    section("Permissions", {}, await permissions(context, name, where)),
    section("Topic permissions", { open: false }, await topicPermissions(context, name, where)),
    section("Update this user", { open: false }, update(where, user, drawTags)),
    section(
      "Delete this user",
      { open: false },
      h(
        "button",
        {
          type: "button",
          class: "danger",
          onclick: async () => {
            if (!(await confirmed("Delete this user?", name, "Delete"))) return;
            if (await attempt(() => api.remove(where), `User ${name} is gone`)) context.go("#/users");
          },
        },
        "Delete",
      ),
    ),
  );
}

function rights(load, kind, columns, clear) {
  return new DataTable(
    [
      ...columns,
      {
        label: "",
        value: (row) =>
          h(
            "button",
            {
              type: "button",
              "aria-label": `Clear ${kind} in ${row.vhost}`,
              onclick: async () => {
                if (await attempt(() => clear(row), "The permission is gone")) load();
              },
            },
            "Clear",
          ),
      },
    ],
    { key: (row) => `${row.vhost}/${row.exchange ?? ""}`, caption: kind, empty: `no ${kind}` },
  );
}

const code = (label, name) => ({ label, value: (row) => h("code", {}, row[name]) });

async function permissions(context, name, where) {
  const load = async () => attempt(async () => table.update(await api.get(`${where}/permissions`)));
  const table = rights(
    load,
    "permissions",
    [
      { label: "Virtual host", value: (row) => row.vhost },
      code("Configure regexp", "configure"),
      code("Write regexp", "write"),
      code("Read regexp", "read"),
    ],
    (row) => api.remove(`permissions/${api.path(row.vhost, name)}`),
  );
  load();
  return [
    table.element,
    h("h3", {}, "Set permission"),
    form(
      [
        await vhostField(context),
        { name: "configure", label: "Configure regexp", value: ".*" },
        { name: "write", label: "Write regexp", value: ".*" },
        { name: "read", label: "Read regexp", value: ".*" },
      ],
      "Set permission",
      async ({ vhost, ...found }) => {
        await api.put(`permissions/${api.path(vhost, name)}`, found);
        notice("The permission is set");
        await load();
      },
    ),
  ];
}

async function topicPermissions(context, name, where) {
  const load = async () => attempt(async () => table.update(await api.get(`${where}/topic-permissions`)));
  const table = rights(
    load,
    "topic permissions",
    [
      { label: "Virtual host", value: (row) => row.vhost },
      { label: "Exchange", value: (row) => row.exchange },
      code("Write regexp", "write"),
      code("Read regexp", "read"),
    ],
    (row) => api.remove(`topic-permissions/${api.path(row.vhost, name)}`),
  );
  load();
  return [
    table.element,
    h("h3", {}, "Set topic permission"),
    form(
      [
        await vhostField(context),
        { name: "exchange", label: "Exchange", value: "amq.topic", required: true },
        { name: "write", label: "Write regexp", value: ".*" },
        { name: "read", label: "Read regexp", value: ".*" },
      ],
      "Set topic permission",
      async ({ vhost, ...found }) => {
        await api.put(`topic-permissions/${api.path(vhost, name)}`, found);
        notice("The permission is set");
        await load();
      },
    ),
  ];
}

function update(where, user, drawTags) {
  return form(
    [
      {
        name: "password",
        label: "New password",
        kind: "password",
        autocomplete: "new-password",
        hint: "Empty: stays as it is. Every log-in with the old one ends.",
      },
      { name: "tags", label: "Tags", value: user.tags.join(", "), hint: TAGS.join(", ") },
    ],
    "Update user",
    async ({ password, tags }) => {
      const secret = password
        ? { password }
        : { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm };
      await api.put(where, { ...secret, tags });
      drawTags(
        tags
          .split(",")
          .map((tag) => tag.trim())
          .filter(Boolean),
      );
      notice("The user is updated");
    },
    { reset: false },
  );
}
