// One queue: its view and ring as they are now, depths and rates, consumers, bindings, and what can be done
// with it.

import * as api from "../api.js";
import { Chart, Rates } from "../charts.js";
import { facts, h, put, putChanged, say, section } from "../dom.js";
import { bytes, count, link, pairs } from "../format.js";
import { attempt, readOnly } from "../forms.js";
import { queueBadges, state } from "../badges.js";
import { Ring } from "../pictures/ring.js";
import { Bindings } from "./bindings.js";
import { consumersTable } from "./consumers.js";
import { publishForm } from "./publish.js";
import { deletion, getMessages, moveForm, promoteForm } from "./queueactions.js";
import { eventsTable } from "./timeline.js";

export default function page(context) {
  const [vhost, name] = context.parameters;
  const where = `queues/${api.path(vhost, name)}`;
  const parts = {
    badges: h("span"),
    state: h("span"),
    details: h("div"),
    sync: h("div"),
    steer: h("div"),
    ring: new Ring(),
    consumers: consumersTable(),
    events: eventsTable({ ofQueue: true }),
  };
  const rates = new Rates();
  const charts = [depthChart(), rateChart(rates)];
  const topics = [
    `${where}?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5`,
    `mirrormq/${where}/view`,
  ];
  if (context.may.watch)
    topics.push(
      `mirrormq/timeline?limit=30&vhost=${encodeURIComponent(vhost)}&queue=${encodeURIComponent(name)}`,
    );

  context.follow(
    topics,
    (place, found) => {
      if (place === 0) {
        context.problem(null);
        drawQueue(parts, found);
        rates.take(found.message_stats);
        for (const chart of charts) chart.add(found);
      } else if (place === 1) {
        parts.ring.update(found);
        drawSync(context, parts, where, found);
        drawSteer(context, parts, vhost, name, found);
      } else {
        parts.events.update([...found.events].reverse());
      }
    },
    (place, fault) => {
      if (place === 0)
        context.problem(
          fault.status === 404
            ? { reason: `There is no queue ${name} in virtual host ${vhost} any more.` }
            : fault,
        );
    },
  );
  const recolour = () => charts.forEach((chart) => chart.recolour());
  document.addEventListener("themechange", recolour);
  context.onLeave(() => {
    document.removeEventListener("themechange", recolour);
    charts.forEach((chart) => chart.close());
  });

  const may = context.may.change;
  return h(
    "div",
    {},
    h(
      "div",
      { class: "heading" },
      h("h1", {}, `Queue ${name}`),
      parts.badges,
      parts.state,
      h("span", { class: "soft" }, `in virtual host ${vhost}`),
    ),
    section("View and ring", { id: "view" }, parts.sync, parts.ring.element),
    section(
      "Overview",
      {},
      h(
        "div",
        { class: "columns" },
        charts.map((chart) => chart.element),
      ),
      h("h3", {}, "Details"),
      parts.details,
    ),
    section("Consumers", {}, parts.consumers.element),
    section("Bindings", {}, new Bindings(context, vhost, "queue", name, "destination").element),
    section(
      "Publish message",
      { open: false, id: "publish" },
      may ? publishForm(vhost, "", name) : readOnly("Publishing", "management"),
    ),
    section(
      "Get messages",
      { open: false, id: "get" },
      may ? getMessages(where) : readOnly("Taking messages", "management"),
    ),
    section("Master", { open: false, id: "master" }, parts.steer),
    context.may.watch ? section("What happened to it", { open: false }, parts.events.element) : null,
    section(
      "Delete and purge",
      { open: false, id: "delete" },
      may ? deletion(context, where, name) : readOnly("Deleting and purging", "management"),
    ),
  );
}

function depthChart() {
  const one = (label, name, colour) => ({
    label,
    colour,
    value: (row) => row[name] ?? null,
    samples: (row) => row[`${name}_details`]?.samples,
  });
  return new Chart(
    "Queued messages",
    [
      one("Ready", "messages_ready", "c1"),
      one("Unacked", "messages_unacknowledged", "c2"),
      one("Total", "messages", "c6"),
    ],
    { least: 10 },
  );
}

function rateChart(rates) {
  const one = (label, name, colour) => ({
    label,
    colour,
    isRate: true,
    value: () => rates.found[name],
    samples: (row) => row.message_stats?.[`${name}_details`]?.samples,
  });
  return new Chart(
    "Message rates",
    [
      one("Publish", "publish", "c1"),
      one("Deliver / get", "deliver_get", "c3"),
      one("Ack", "ack", "c2"),
      one("Redelivered", "redeliver", "c5"),
    ],
    { unit: "rate" },
  );
}

function drawQueue(parts, row) {
  putChanged(parts.badges, queueBadges(row));
  putChanged(parts.state, state(row.state));
  parts.consumers.update(row.consumer_details ?? []);
  putChanged(
    parts.details,
    facts([
      ["Node", h("a", { href: link("nodes", row.node) }, row.node)],
      ["Policy", row.policy ? h("a", { href: "#/policies" }, row.policy) : "none"],
      ["Operator policy", row.operator_policy],
      ["Effective definition", pairs(row.effective_policy_definition).join(", ") || null],
      ["Arguments", pairs(row.arguments).join(", ") || null],
      ["Consumers", count(row.consumers)],
      ["Messages", count(row.messages)],
      ["Ready", count(row.messages_ready)],
      ["Unacked", count(row.messages_unacknowledged)],
      ["Message bytes", bytes(row.message_bytes)],
      ["Ready bytes", bytes(row.message_bytes_ready)],
      ["Durable mark", row.durable_mark === undefined ? null : count(row.durable_mark)],
      ["Lossy promotions", row.losses ? count(row.losses) : null],
      ["Salvaged messages", row.salvaged ? count(row.salvaged) : null],
      ["To be salvaged on", row.to_salvage && row.to_salvage.length ? row.to_salvage.join(", ") : null],
    ]),
  );
}

/** The bar of a synchronisation, or the button that begins one. */
function drawSync(context, parts, where, view) {
  const behind = view.members.filter((member) => member.running && !member.in_sync);
  const isBusy = behind.some((member) => member.state === "copying" || member.state === "catching-up");
  const sign = `${behind.map((member) => member.node)} ${isBusy} ${view.master}`;
  if (parts.sync.dataset.sign !== sign) {
    parts.sync.dataset.sign = sign;
    put(parts.sync, behind.length && view.master ? syncLine(context, where, behind, isBusy) : null);
  }
  const bar = parts.sync.querySelector("progress");
  if (bar) {
    const share = Math.min(...behind.map((member) => member.progress ?? 0));
    bar.value = share;
    say(parts.sync.querySelector(".share"), isBusy ? `${Math.floor(share)} %` : "waiting");
  }
}

function syncLine(context, where, behind, isBusy) {
  const act = (action, done) => attempt(() => api.post(`${where}/actions`, { action }), done);
  const button = isBusy
    ? h(
        "button",
        { type: "button", onclick: () => act("cancel_sync", "Synchronising is cancelled") },
        "Cancel sync",
      )
    : h("button", { type: "button", onclick: () => act("sync", "Synchronising has begun") }, "Synchronise");
  return h(
    "div",
    { class: "sync" },
    h(
      "span",
      { class: "state bad" },
      `${behind.length} unsynchronised mirror${behind.length === 1 ? "" : "s"}`,
    ),
    h("progress", { max: 100, value: 0, "aria-label": "Synchronised" }),
    h("span", { class: "share" }),
    context.may.administer ? button : null,
  );
}

function drawSteer(context, parts, vhost, name, view) {
  const others = view.members.filter((member) => member.running && member.node !== view.master);
  const sign = `${view.master} ${others.map((member) => member.node + member.in_sync)}`;
  if (parts.steer.dataset.sign === sign) return;
  parts.steer.dataset.sign = sign;
  const isThere = Boolean(view.master);
  const text = isThere
    ? h("p", {}, "Master: ", h("strong", {}, view.master))
    : h("p", { class: "problem" }, `No master. ${waits(view)}`);
  let control = readOnly("Moving the master", "administrator");
  if (context.may.administer) control = isThere ? moveForm(vhost, name, others) : promoteForm(vhost, name);
  put(
    parts.steer,
    text,
    view.mirrored ? control : h("p", {}, "The queue is not mirrored: it stays where it is."),
  );
}

function waits(view) {
  return view.waits_for?.length ? `It waits for ${view.waits_for.join(" or ")}.` : "";
}
