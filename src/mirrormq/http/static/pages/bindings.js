// Bindings of a queue or an exchange: what there is, one more, one less.

import * as api from "../api.js";
import { h } from "../dom.js";
import { exchangeName, exchangePart, link, pairs } from "../format.js";
import { attempt, form, notice } from "../forms.js";
import { DataTable } from "../table.js";

/** `end`: "source" for bindings from an exchange, "destination" for those to a queue or exchange. */
export class Bindings {
  constructor(context, vhost, kind, name, end) {
    this.context = context;
    this.vhost = vhost;
    this.kind = kind;
    this.name = name;
    this.end = end;
    const far = end === "source" ? "destination" : "source";
    this.table = new DataTable(
      [
        { label: end === "source" ? "To" : "From", long: true, value: (row) => this.farEnd(row, far) },
        { label: "Routing key", long: true, value: (row) => h("code", {}, row.routing_key) },
        { label: "Arguments", long: true, value: (row) => pairs(row.arguments).join(", ") },
        { label: "", value: (row) => this.unbind(row) },
      ],
      {
        key: (row) => `${row.source} ${row.destination_type} ${row.destination} ${row.properties_key}`,
        caption: "Bindings",
        empty: "no bindings",
      },
    );
    this.element = h(
      "div",
      {},
      this.table.element,
      context.may.change ? [h("h3", {}, this.heading()), this.form()] : null,
    );
    this.load();
  }

  heading() {
    if (this.end === "source") return "Add a binding from this exchange";
    return `Add a binding to this ${this.kind}`;
  }

  farEnd(row, far) {
    if (far === "source") {
      if (row.source === "") return h("span", { class: "soft" }, "(default exchange binding)");
      return h(
        "a",
        { href: link("exchanges", row.vhost, exchangePart(row.source)) },
        exchangeName(row.source),
      );
    }
    const kind = row.destination_type === "queue" ? "queues" : "exchanges";
    return h(
      "span",
      {},
      h("a", { href: link(kind, row.vhost, row.destination) }, row.destination),
      h("span", { class: "soft" }, row.destination_type === "exchange" ? " (exchange)" : ""),
    );
  }

  unbind(row) {
    if (row.source === "" || !this.context.may.change) return "";
    const letter = row.destination_type === "queue" ? "q" : "e";
    const ends = [exchangePart(row.source), letter, row.destination];
    const where = `bindings/${api.path(row.vhost, "e", ...ends, row.properties_key)}`;
    return h(
      "button",
      {
        type: "button",
        "aria-label": `Unbind ${row.source} from ${row.destination}, routing key ${row.routing_key}`,
        onclick: async () => {
          if (await attempt(() => api.remove(where), "The binding is gone")) this.load();
        },
      },
      "Unbind",
    );
  }

  async load() {
    const ends = this.kind === "queue" ? "bindings" : `bindings/${this.end}`;
    const kind = this.kind === "queue" ? "queues" : "exchanges";
    await attempt(async () => {
      this.table.update(
        await api
          .get(`${kind}/${api.path(this.vhost, exchangePart(this.name))}/${ends}?page=1&page_size=500`)
          .then((found) => found.items ?? found),
      );
    });
  }

  form() {
    const isFrom = this.end === "source";
    const fields = [
      isFrom
        ? {
            name: "kind",
            label: "To",
            kind: "select",
            options: [
              ["q", "queue"],
              ["e", "exchange"],
            ],
          }
        : null,
      { name: "far", label: isFrom ? "Name" : "From exchange", required: true },
      { name: "routing_key", label: "Routing key" },
      { name: "arguments", label: "Arguments", kind: "pairs" },
    ].filter(Boolean);
    return form(
      fields,
      "Bind",
      async (found) => {
        const source = isFrom ? exchangePart(this.name) : found.far;
        const letter = isFrom ? found.kind : this.kind === "queue" ? "q" : "e";
        const destination = isFrom ? found.far : this.name;
        await api.post(`bindings/${api.path(this.vhost, "e", source, letter, destination)}`, {
          routing_key: found.routing_key,
          arguments: found.arguments,
        });
        notice("The binding is there");
        await this.load();
      },
      { label: this.heading() },
    );
  }
}
