// The cluster at a glance: figures, charts, nodes, listeners.

import { Chart, meter, Rates } from "../charts.js";
import { h, putChanged, section } from "../dom.js";
import { bytes, count, link, shortNode, span } from "../format.js";
import { state } from "../badges.js";
import { DataTable } from "../table.js";

const RANGES = [
  ["60:5", "Last minute"],
  ["600:5", "Last ten minutes"],
  ["3600:60", "Last hour"],
  ["28800:600", "Last eight hours"],
  ["86400:1800", "Last day"],
];
const RATE_SERIES = [
  ["Publish", "publish", "c1"],
  ["Confirm", "confirm", "c4"],
  ["Deliver / get", "deliver_get", "c3"],
  ["Acknowledge", "ack", "c2"],
  ["Redelivered", "redeliver", "c5"],
];
const KEPT = "mirrormq.range";

export default function page(context) {
  const range = localStorage.getItem(KEPT) ?? "60:5";
  const rates = new Rates();
  const charts = [queued(), flow(rates)];
  const tiles = h("div", { class: "tiles" });
  const table = nodesTable();
  const ports = listenersTable();
  const select = h(
    "select",
    {
      "aria-label": "Time shown by the charts",
      onchange: (event) => {
        localStorage.setItem(KEPT, event.target.value);
        context.again();
      },
    },
    RANGES.map(([value, label]) => h("option", { value, selected: value === range }, label)),
  );

  const [age, step] = range.split(":");
  const query = ["lengths", "msg_rates"].map((name) => `${name}_age=${age}&${name}_incr=${step}`).join("&");
  context.follow([`overview?${query}`, ...(context.may.watch ? ["nodes"] : [])], (place, found) => {
    context.problem(null);
    if (place === 0) {
      rates.take(found.message_stats);
      putChanged(tiles, figures(found));
      for (const chart of charts) chart.add(found);
      ports.update(found.listeners ?? []);
    } else {
      table.update(found);
    }
  });
  const recolour = () => charts.forEach((chart) => chart.recolour());
  document.addEventListener("themechange", recolour);
  context.onLeave(() => {
    document.removeEventListener("themechange", recolour);
    charts.forEach((chart) => chart.close());
  });
  const shown = h(
    "div",
    {},
    h("div", { class: "heading" }, h("h1", {}, "Overview"), select),
    tiles,
    h(
      "div",
      { class: "columns" },
      charts.map((chart) => chart.element),
    ),
    h("div", { class: "gap" }),
  );
  if (!context.may.watch) {
    shown.append(
      h(
        "p",
        { class: "read-only" },
        "These are figures of your virtual hosts and connections. Those of the whole cluster, and its " +
          "nodes, need the tag monitoring or administrator.",
      ),
    );
    return shown;
  }
  shown.append(
    section("Nodes", {}, table.element),
    section("Listening ports", { open: false }, ports.element),
    section(
      "Export and import",
      { open: false },
      h("p", {}, h("a", { href: "#/definitions" }, "Definitions"), " can be downloaded and uploaded there."),
    ),
  );
  return shown;
}

function figures(found) {
  const objects = found.object_totals ?? {};
  const tile = (label, value, href) =>
    h(href ? "a" : "div", { class: "tile", href }, h("span", {}, label), h("strong", {}, count(value)));
  return [
    tile("Connections", objects.connections, "#/connections"),
    tile("Channels", objects.channels, "#/channels"),
    tile("Exchanges", objects.exchanges, "#/exchanges"),
    tile("Queues", objects.queues, "#/queues"),
    ...(objects.consumers === undefined ? [] : [tile("Consumers", objects.consumers)]),
    tile("Messages", found.queue_totals?.messages),
  ];
}

function queued() {
  const one = (label, name, colour) => ({
    label,
    colour,
    value: (found) => found.queue_totals?.[name] ?? 0,
    samples: (found) => found.queue_totals?.[`${name}_details`]?.samples,
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

function flow(rates) {
  return new Chart(
    "Message rates",
    RATE_SERIES.map(([label, name, colour]) => ({
      label,
      colour,
      isRate: true,
      value: () => rates.found[name] ?? 0,
      samples: (found) => found.message_stats?.[`${name}_details`]?.samples,
    })),
    { unit: "rate", least: 1 },
  );
}

export function nodesTable() {
  return new DataTable(
    [
      { label: "Name", main: true, value: (row) => h("a", { href: link("nodes", row.name) }, row.name) },
      { label: "State", value: (row) => state(row.running ? (row.paused ? "held" : "running") : "down") },
      { label: "Memory", value: (row) => limited(row, row.mem_used, row.mem_limit, "memory", row.mem_alarm) },
      {
        label: "Disk space free",
        value: (row) =>
          row.running
            ? h(
                "span",
                {},
                `${bytes(row.disk_free)}`,
                h("span", { class: "soft" }, ` (limit ${bytes(row.disk_free_limit)})`),
              )
            : "–",
      },
      {
        label: "File descriptors",
        value: (row) =>
          row.fd_total
            ? meter(
                row.fd_used,
                row.fd_total,
                "File descriptors used",
                `${count(row.fd_used)} of ${count(row.fd_total)}`,
              )
            : "–",
      },
      { label: "Sockets", num: true, value: (row) => count(row.sockets_used) },
      { label: "Uptime", num: true, value: (row) => (row.running ? span(row.uptime) : "–") },
      { label: "Alarms", value: (row) => alarms(row) },
    ],
    { key: (row) => row.name, caption: "Nodes of the cluster", empty: "no nodes" },
  );
}

function limited(row, used, limit, what, isAlarm) {
  if (!row.running) return "–";
  return meter(used, limit, `${what} used`, `${bytes(used)} of ${bytes(limit)}${isAlarm ? ": alarm" : ""}`);
}

export function alarms(row) {
  const found = [row.mem_alarm && "memory", row.disk_free_alarm && "disk"].filter(Boolean);
  return found.length ? h("span", { class: "state bad" }, found.join(", ")) : "none";
}

function listenersTable() {
  return new DataTable(
    [
      { label: "Node", value: (row) => shortNode(row.node) },
      { label: "Protocol", value: (row) => row.protocol },
      { label: "Bound to", value: (row) => row.ip_address },
      { label: "Port", num: true, value: (row) => String(row.port) },
    ],
    { key: (row) => `${row.node} ${row.protocol} ${row.ip_address} ${row.port}`, caption: "Listening ports" },
  );
}
