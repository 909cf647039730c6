// One node: memory, disk, links, what it is in the cluster.

import { Chart } from "../charts.js";
import { facts, h, putChanged, section } from "../dom.js";
import { bytes, count, span } from "../format.js";
import { path } from "../api.js";
import { state } from "../badges.js";
import { alarms } from "./overview.js";

export default function page(context) {
  const [name] = context.parameters;
  const details = h("div");
  const memory = new Chart(
    "Memory",
    [
      {
        label: "Used",
        colour: "c1",
        value: (row) => row.mem_used,
        samples: (row) => row.mem_used_details?.samples,
      },
    ],
    { unit: "bytes" },
  );
  const sockets = new Chart(
    "Sockets",
    [
      {
        label: "Connections",
        colour: "c3",
        value: (row) => row.sockets_used,
        samples: (row) => row.sockets_used_details?.samples,
      },
    ],
    { least: 5 },
  );
  context.follow([`nodes/${path(name)}`], (_, row) => {
    context.problem(null);
    putChanged(
      details,
      facts([
        ["State", state(row.running ? (row.paused ? "held" : "running") : "down")],
        ["Uptime", row.running ? span(row.uptime) : null],
        ["Memory", row.running ? `${bytes(row.mem_used)} of ${bytes(row.mem_limit)}` : null],
        [
          "Disk space free",
          row.running ? `${bytes(row.disk_free)}, limit ${bytes(row.disk_free_limit)}` : null,
        ],
        ["File descriptors", row.fd_total ? `${count(row.fd_used)} of ${count(row.fd_total)}` : null],
        ["Sockets", row.running ? count(row.sockets_used) : null],
        ["Alarms", row.running ? alarms(row) : null],
        ["Lease", row.lease ? (row.lease.held ? "held" : "not held") : null],
        ["Links to", (row.cluster_links ?? []).map((entry) => entry.name).join(", ") || null],
        ["Process id", row.os_pid],
        ["Data folder", row.db_dir],
        ["Configuration", (row.config_files ?? []).join(", ") || null],
        ["Log files", (row.log_files ?? []).join(", ") || null],
        ["Version", row.applications?.[0]?.version],
      ]),
    );
    if (row.running) for (const chart of [memory, sockets]) chart.add(row);
  });
  context.onLeave(() => [memory, sockets].forEach((chart) => chart.close()));
  return h(
    "div",
    {},
    h("h1", {}, `Node ${name}`),
    h("div", { class: "columns" }, memory.element, sockets.element),
    h("div", { class: "gap" }),
    section("Details", {}, details),
    h("p", {}, h("a", { href: "#/cluster" }, "Map of the cluster")),
  );
}
