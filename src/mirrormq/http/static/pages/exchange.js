// One exchange: rates, bindings, publish, delete.

import * as api from "../api.js";
import { Chart, Rates } from "../charts.js";
import { facts, h, putChanged, section } from "../dom.js";
import { exchangeName, pairs } from "../format.js";
import { attempt, confirmed, readOnly } from "../forms.js";
import { exchangeBadges } from "../badges.js";
import { Bindings } from "./bindings.js";
import { publishForm } from "./publish.js";

export default async function page(context) {
  const [vhost, part] = context.parameters;
  const name = part === "amq.default" ? "" : part;
  const where = `exchanges/${api.path(vhost, part)}`;
  const first = await api.get(where);
  const details = h("div");
  const rates = new Rates();
  const series = (label, key, colour) => ({
    label,
    colour,
    isRate: true,
    value: () => rates.found[key],
    samples: (row) => row.message_stats?.[`${key}_details`]?.samples,
  });
  const chart = new Chart(
    "Message rates",
    [series("Publish (in)", "publish_in", "c1"), series("Publish (out)", "publish_out", "c3")],
    { unit: "rate" },
  );
  let hasRates = false;
  context.follow([`${where}?msg_rates_age=60&msg_rates_incr=5`], (_, row) => {
    context.problem(null);
    rates.take(row.message_stats);
    hasRates ||= Boolean(row.message_stats);
    chart.element.hidden = !hasRates;
    if (hasRates) chart.add(row);
    putChanged(
      details,
      facts([
        ["Type", row.type],
        ["Features", exchangeBadges(row)],
        ["Policy", row.policy ?? "none"],
        ["Arguments", pairs(row.arguments).join(", ") || null],
      ]),
    );
  });
  context.onLeave(() => chart.close());
  const isOwn = name === "" || name.startsWith("amq.");
  return h(
    "div",
    {},
    h(
      "div",
      { class: "heading" },
      h("h1", {}, `Exchange ${exchangeName(name)}`),
      h("span", { class: "soft" }, `in virtual host ${vhost}`),
    ),
    section("Overview", {}, details, chart.element),
    section(
      "Bindings",
      {},
      name === ""
        ? h("p", {}, "Every queue is bound to the default exchange by its name. Nothing else can be.")
        : [
            new Bindings(context, vhost, "exchange", name, "source").element,
            h("h3", {}, "Bindings to this exchange"),
            new Bindings(context, vhost, "exchange", name, "destination").element,
          ],
    ),
    section(
      "Publish message",
      { open: false },
      first.internal
        ? h("p", {}, "Clients cannot publish to an internal exchange.")
        : context.may.change
          ? publishForm(vhost, name)
          : readOnly("Publishing", "management"),
    ),
    section(
      "Delete this exchange",
      { open: false },
      isOwn
        ? h("p", {}, "This exchange is there by itself and stays.")
        : context.may.change
          ? deletion(context, where, name)
          : readOnly("Deleting", "management"),
    ),
  );
}

function deletion(context, where, name) {
  return h(
    "button",
    {
      type: "button",
      class: "danger",
      onclick: async () => {
        if (
          !(await confirmed("Delete this exchange?", `${name} and all its bindings will be gone.`, "Delete"))
        )
          return;
        if (await attempt(() => api.remove(where), `Exchange ${name} is gone`)) context.go("#/exchanges");
      },
    },
    "Delete",
  );
}
