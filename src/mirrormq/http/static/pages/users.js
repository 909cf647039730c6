// All users; add one.

import * as api from "../api.js";
import { h, section } from "../dom.js";
import { link } from "../format.js";
import { attempt, form, notice } from "../forms.js";
import { DataTable } from "../table.js";
import { admin, refused } from "./admin.js";

export const TAGS = ["administrator", "monitoring", "policymaker", "management"];

export default function page(context) {
  if (!context.may.administer) return refused("users", "Users", "administrator");
  const table = new DataTable(
    [
      { label: "Name", main: true, value: (row) => h("a", { href: link("users", row.name) }, row.name) },
      {
        label: "Tags",
        value: (row) =>
          h(
            "span",
            { class: "badges" },
            row.tags.map((tag) => h("span", { class: "badge" }, tag)),
          ),
      },
      {
        label: "Can access virtual hosts",
        long: true,
        value: (row) => row.vhosts.join(", ") || h("span", { class: "state bad" }, "No access"),
      },
      { label: "Has password", value: (row) => (row.hasPassword ? "●" : "○") },
    ],
    { key: (row) => row.name, caption: "Users", empty: "no users" },
  );

  async function load() {
    await attempt(async () => {
      const [users, permissions] = await Promise.all([api.get("users"), api.get("permissions")]);
      table.update(
        users.map((user) => ({
          name: user.name,
          tags: user.tags,
          hasPassword: Boolean(user.password_hash),
          vhosts: permissions.filter((row) => row.user === user.name).map((row) => row.vhost),
        })),
      );
    });
  }

  const add = form(
    [
      { name: "name", label: "Username", required: true },
      { name: "password", label: "Password", kind: "password", required: true, autocomplete: "new-password" },
      {
        name: "again",
        label: "Password again",
        kind: "password",
        required: true,
        autocomplete: "new-password",
      },
      { name: "tags", label: "Tags", list: "user-tags", hint: `With commas: ${TAGS.join(", ")}` },
    ],
    "Add user",
    async (found) => {
      if (found.password !== found.again) throw new Error("The two passwords are not the same");
      await api.put(`users/${api.path(found.name)}`, { password: found.password, tags: found.tags });
      notice(`User ${found.name} is there; permissions are set on the user's page`);
      await load();
    },
  );
  add.append(
    h(
      "datalist",
      { id: "user-tags" },
      TAGS.map((value) => h("option", { value })),
    ),
  );
  load();
  return admin(
    "users",
    h("h1", {}, "Users"),
    table.element,
    h("div", { class: "gap" }),
    section("Add a user", { open: false }, add),
  );
}
