// Definitions: everything but messages, as one file, down and up.

import * as api from "../api.js";
import { h, newId, section } from "../dom.js";
import { attempt, confirmed } from "../forms.js";
import { admin, refused } from "./admin.js";

export default async function page(context) {
  if (!context.may.administer) return refused("definitions", "Definitions", "administrator");
  const found = await api.get("vhosts?columns=name");
  const chosen = h(
    "select",
    { id: newId("vhost") },
    h("option", { value: "" }, "All"),
    found.map((row) => h("option", { value: row.name }, row.name)),
  );
  const file = h("input", { type: "file", id: newId("file"), accept: ".json,application/json" });
  const where = () => (chosen.value ? `definitions/${api.path(chosen.value)}` : "definitions");

  async function down() {
    const content = await api.getText(where());
    const url = URL.createObjectURL(new Blob([content], { type: "application/json" }));
    const day = new Date().toISOString().slice(0, 10);
    const link = h("a", { href: url, download: `definitions-${day}.json` });
    document.body.append(link);
    link.click();
    link.remove();
    URL.revokeObjectURL(url);
  }

  async function up() {
    if (!file.files.length) throw new Error("Choose a file first");
    const content = await file.files[0].text();
    try {
      JSON.parse(content);
    } catch {
      throw new Error("This file is no JSON; a definition file is what the download gives");
    }
    if (
      !(await confirmed(
        "Upload these definitions?",
        "What is there stays; what differs becomes as in the file.",
        "Upload",
      ))
    )
      return;
    await api.postText(where(), content);
    file.value = "";
    await attempt(async () => undefined, "The definitions are imported");
    context.vhostsChanged();
  }

  return admin(
    "definitions",
    h("h1", {}, "Definitions"),
    h(
      "p",
      {},
      "Users, virtual hosts, permissions, parameters, policies, queues, exchanges and bindings: " +
        "everything but messages. The files are RabbitMQ's.",
    ),
    h(
      "div",
      { class: "form" },
      h("div", { class: "field" }, h("label", { for: chosen.id }, "Virtual host"), chosen),
    ),
    h("div", { class: "gap" }),
    h(
      "div",
      { class: "columns" },
      section(
        "Export",
        {},
        h("button", { type: "button", class: "main", onclick: () => attempt(down) }, "Download definitions"),
      ),
      section(
        "Import",
        {},
        h("p", {}, h("label", { for: file.id }, "Definition file "), file),
        h("button", { type: "button", class: "main", onclick: () => attempt(up) }, "Upload definitions"),
      ),
    ),
  );
}
