// The cluster as a picture: nodes, the links between them, who leads, who may vote, who is paused.

import { h, putChanged, s } from "../dom.js";
import { count, shortNode } from "../format.js";

const WIDTH = 420;
const CENTRE = { x: WIDTH / 2, y: 165 };
const RADIUS = 38;

/** rows: [{name, running, paused, leader, role, links: set of names, lease, masters, mirrors}] */
export class ClusterMap {
  constructor() {
    this.svg = s("svg", {
      class: "picture map",
      viewBox: `0 0 ${WIDTH} 330`,
      role: "img",
      "aria-labelledby": "map-title map-text",
    });
    this.element = h("div", {}, this.svg, legend());
  }

  update(rows) {
    const places = new Map(rows.map((row, place) => [row.name, spot(place, rows.length)]));
    putChanged(
      this.svg,
      s("title", { id: "map-title" }, "Map of the cluster"),
      s("desc", { id: "map-text" }, rows.map(sentence).join(" ")),
      links(rows, places),
      rows.map((row) => node(row, places.get(row.name))),
    );
  }
}

function spot(place, total) {
  if (total === 1) return { x: CENTRE.x, y: 150 };
  const turn = -Math.PI / 2 + (2 * Math.PI * place) / total;
  return { x: CENTRE.x + 136 * Math.cos(turn), y: CENTRE.y + 118 * Math.sin(turn) };
}

/** A link is there if either end says so, and missing if both nodes should have one. */
function links(rows, places) {
  const found = [];
  rows.forEach((one, place) =>
    rows.slice(place + 1).forEach((other) => {
      const isUp = one.running && other.running && (one.links.has(other.name) || other.links.has(one.name));
      const [from, to] = [places.get(one.name), places.get(other.name)];
      found.push(
        s("line", {
          class: `p-arrow ${isUp ? "" : "off"}`,
          x1: from.x.toFixed(1),
          y1: from.y.toFixed(1),
          x2: to.x.toFixed(1),
          y2: to.y.toFixed(1),
          "data-link": `${one.name} ${other.name}`,
          "data-up": String(isUp),
        }),
      );
    }),
  );
  return found;
}

function node(row, at) {
  const kinds = [
    "p-node",
    row.running ? (row.paused ? "paused" : "well") : "down",
    row.leader && "leader",
    row.role === "witness" && "witness",
  ];
  const held =
    row.running && row.masters !== undefined
      ? `${count(row.masters)} masters · ${count(row.mirrors)} mirrors`
      : "";
  const status = !row.running
    ? "down"
    : row.paused
      ? "paused: no majority"
      : row.lease === false
        ? "no lease"
        : row.role;
  return s(
    "g",
    {
      class: kinds.filter(Boolean).join(" "),
      transform: `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})`,
      "data-node": row.name,
    },
    s("circle", { class: "body", r: RADIUS }),
    s(
      "text",
      { class: "glyph", y: row.leader ? -4 : 5 },
      row.running ? (row.role === "witness" ? "W" : row.paused ? "❚❚" : "✓") : "×",
    ),
    row.leader ? s("text", { class: "sub", y: 14 }, "leader") : null,
    s("text", { y: RADIUS + 17, "font-weight": 600 }, shortNode(row.name)),
    s("text", { class: "sub", y: RADIUS + 31 }, status),
    s("text", { class: "sub", y: RADIUS + 44 }, held),
  );
}

function sentence(row) {
  const state = row.running ? (row.paused ? "is paused" : "is running") : "is down";
  return `${row.name} ${state}${row.leader ? " and leads" : ""}, ${row.role}.`;
}

function legend() {
  const entry = (name, text) => h("li", {}, h("i", { class: name }), text);
  return h(
    "ul",
    { class: "key" },
    entry("k-master", "leader of the metadata"),
    entry("k-mirror", "running"),
    entry("k-down", "down"),
    entry("k-arrow", "link"),
  );
}
