// The cluster: a map of its nodes and links, and what it can still lose.

import { facts, h, putChanged, section } from "../dom.js";
import { count, link, span } from "../format.js";
import { state } from "../badges.js";
import { ClusterMap } from "../pictures/clustermap.js";
import { DataTable } from "../table.js";

export default function page(context) {
  if (!context.may.watch) {
    return [
      h("h1", {}, "Cluster"),
      h("p", { class: "read-only" }, "Nodes are shown to the tags monitoring and administrator."),
    ];
  }
  const map = new ClusterMap();
  const about = h("div");
  const table = new DataTable(
    [
      { label: "Node", main: true, value: (row) => h("a", { href: link("nodes", row.name) }, row.name) },
      { label: "State", value: (row) => state(row.running ? (row.paused ? "held" : "running") : "down") },
      { label: "Role", value: (row) => row.role },
      { label: "Leader", value: (row) => (row.leader ? "leader" : "") },
      { label: "Lease", value: (row) => (row.lease === undefined ? "–" : row.lease ? "held" : "not held") },
      { label: "Links to", long: true, value: (row) => row.linked.join(", ") || "–" },
      { label: "Masters", num: true, value: (row) => count(row.masters) },
      { label: "Mirrors", num: true, value: (row) => count(row.mirrors) },
      { label: "Address", value: (row) => row.address },
      { label: "Uptime", num: true, value: (row) => span(row.uptime) },
    ],
    { key: (row) => row.name, caption: "Nodes of the cluster" },
  );
  const known = { cluster: null, nodes: [] };
  context.follow(["mirrormq/cluster", "nodes"], (place, found) => {
    context.problem(null);
    if (place === 0) known.cluster = found;
    else known.nodes = found;
    if (!known.cluster) return;
    const rows = joined(known.cluster, known.nodes);
    map.update(rows);
    table.update(rows.map(({ links, ...row }) => ({ ...row, linked: [...links] })));
    putChanged(
      about,
      facts([
        ["Cluster", known.cluster.cluster_name],
        ["Fault tolerance", known.cluster.tolerance],
        ["Leader", known.cluster.leader || "none"],
        ["Feature level", count(known.cluster.feature_level)],
        ["Seen from", known.cluster.node],
        [
          "Alarms",
          known.cluster.alarms.length
            ? known.cluster.alarms.map((alarm) => `${alarm.resource} on ${alarm.node}`).join(", ")
            : "none",
        ],
      ]),
    );
  });
  return h(
    "div",
    {},
    h("h1", {}, "Cluster"),
    section("Map", {}, map.element),
    section("Facts", {}, about),
    section("Nodes", {}, table.element),
  );
}

function joined(cluster, nodes) {
  const details = new Map(nodes.map((row) => [row.name, row]));
  return cluster.members.map((member) => {
    const row = details.get(member.name) ?? {};
    const links = new Set((row.cluster_links ?? []).map((entry) => entry.name));
    // The node that is asked hears those that it calls running.
    if (member.name === cluster.node)
      for (const name of cluster.running_nodes) if (name !== cluster.node) links.add(name);
    return {
      ...member,
      links,
      uptime: row.uptime,
      masters: row.masters,
      mirrors: row.mirrors,
      lease: row.lease?.held,
      paused: row.paused ?? (member.name === cluster.node && cluster.paused),
    };
  });
}
