// A queue's view as a picture: every node keeps its place, so that a fail-over shows as a change of roles.
// Beside it a table says the same in words and numbers.

import { h, putChanged, s } from "../dom.js";
import { bytes, count, percent, shortNode } from "../format.js";
import { state } from "../badges.js";
import { DataTable } from "../table.js";

const WIDTH = 400;
const CENTRE = { x: WIDTH / 2, y: 158 };
const RADIUS = 34;
/** By the number of members: an even number has one at the bottom. */
const HEIGHTS = { 1: 215, 2: 205, 3: 290, 5: 325 };

export class Ring {
  constructor() {
    this.svg = s("svg", {
      class: "picture",
      viewBox: `0 0 ${WIDTH} 290`,
      role: "img",
      "aria-labelledby": "ring-title ring-text",
    });
    this.known = new Set();
    this.news = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.table = new DataTable(
      [
        { label: "Node", main: true, value: (row) => row.node },
        { label: "Role", value: (row) => roleText(row) },
        { label: "State", value: (row) => state(row.state) },
        { label: "Fed by", value: (row) => (row.source ? shortNode(row.source) : "–") },
        { label: "Received", num: true, value: (row) => count(row.received) },
        { label: "Flushed", num: true, value: (row) => count(row.flushed) },
        {
          label: "Lag",
          num: true,
          title: "Records it has not flushed",
          value: (row) =>
            row.progress !== null && row.progress !== undefined && !row.in_sync
              ? percent(row.progress)
              : count(row.lag),
        },
        { label: "Marks", value: (row) => bar(row) },
      ],
      { key: (row) => row.node, caption: "Members of the view" },
    );
    this.line = h("p", { class: "soft" });
    this.element = h(
      "div",
      {},
      h("div", { class: "ring-box" }, this.svg, h("div", {}, this.table.element, this.line)),
      legend(),
      this.news,
    );
  }

  update(view) {
    const marks = view.marks;
    const inSync = view.members.filter((member) => member.in_sync).length;
    this.table.update(view.members.map((member) => ({ ...member, marks })));
    const sizes = marks
      ? `End ${count(marks.end)}, received by all in-sync members ${count(marks.received)}, ` +
        `durable ${count(marks.durable)}.`
      : "";
    this.line.textContent = [
      view.problem ? `Marks are not known: ${view.problem}.` : sizes,
      `${count(inSync)} of ${count(view.copies_wanted)} wanted copies are in sync.`,
    ].join(" ");
    this.draw(view);
    if (this.last && (this.last.epoch !== view.epoch || this.last.master !== view.master))
      this.tell(this.last, view);
    this.last = view;
  }

  /** Only what matters is read out: another master, none, another epoch. */
  tell(before, view) {
    if (before.master !== view.master) {
      this.news.textContent = view.master
        ? `${view.master} is the master since epoch ${view.since_epoch}`
        : "The queue has no master";
    }
    this.svg.classList.remove("flash");
    void this.svg.getBoundingClientRect();
    this.svg.classList.add("flash");
  }

  draw(view) {
    for (const member of view.members) this.known.add(member.node);
    // Who was in the view while this page was open keeps a place in the picture.
    const names = [...this.known].sort();
    const gone = names.filter((name) => !view.members.some((member) => member.node === name));
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHTS[names.length] ?? 350}`);
    const places = new Map(names.map((name, place) => [name, spot(place, names.length)]));
    putChanged(
      this.svg,
      s("title", { id: "ring-title" }, `View of queue ${view.name}, epoch ${view.epoch}`),
      s("desc", { id: "ring-text" }, sentence(view)),
      reports(view, places),
      view.members.map((member) => arrow(member, places)),
      centre(view, names.length),
      view.members.map((member) => node(member, view, places.get(member.node))),
      gone.map((name) => former(name, places.get(name))),
    );
  }
}

function spot(place, total) {
  if (total === 1) return { x: CENTRE.x, y: 90 };
  if (total === 2) return { x: CENTRE.x + (place ? 120 : -120), y: 90 };
  const turn = -Math.PI / 2 + (2 * Math.PI * place) / total;
  return { x: CENTRE.x + 138 * Math.cos(turn), y: CENTRE.y + 108 * Math.sin(turn) };
}

function kind(member, view) {
  if (!member.running || member.state === "down") return "down";
  if (member.node === view.master) return "master";
  return member.in_sync ? "mirror" : "behind";
}

function roleText(row) {
  if (row.role === "master") return "master";
  return row.in_sync ? "mirror" : row.running ? "unsynchronised mirror" : "mirror";
}

function node(member, view, at) {
  const role = kind(member, view);
  const glyph = { master: "M", mirror: "✓", behind: "…", down: "×" }[role];
  const below = {
    master: "master",
    mirror: `mirror · lag ${count(member.lag)}`,
    down: "down",
    behind: `${member.state} ${(member.progress ?? null) === null ? "" : percent(member.progress)}`,
  }[role];
  return s(
    "g",
    {
      class: `p-node ${role}`,
      transform: `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})`,
      "data-node": member.node,
      "data-role": role,
    },
    s("circle", { class: "body", r: RADIUS }),
    role === "behind" && member.progress
      ? s("path", { class: "p-progress", d: arc(RADIUS, member.progress / 100) })
      : null,
    s("text", { class: "glyph", y: -6 }, glyph),
    s(
      "text",
      { class: "sub", y: 10 },
      member.flushed === null || member.flushed === undefined ? "" : `#${count(member.flushed)}`,
    ),
    s("text", { y: RADIUS + 16, "font-weight": 600 }, shortNode(member.node)),
    s("text", { class: "sub", y: RADIUS + 30 }, below),
  );
}

function arc(radius, share) {
  const turn = Math.min(0.9999, share) * 2 * Math.PI;
  const x = radius * Math.sin(turn);
  const y = -radius * Math.cos(turn);
  return `M 0 ${-radius} A ${radius} ${radius} 0 ${share > 0.5 ? 1 : 0} 1 ${x.toFixed(2)} ${y.toFixed(2)}`;
}

/** A curve between two nodes that ends before their circles, bent away from the middle. */
function curve(from, to, bend) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const middle = {
    x: (from.x + to.x) / 2 - (dy / length) * bend,
    y: (from.y + to.y) / 2 + (dx / length) * bend,
  };
  const start = towards(from, middle, RADIUS + 4);
  const end = towards(to, middle, RADIUS + 10);
  return {
    d: `M ${at(start)} Q ${at(middle)} ${at(end)}`,
    end,
    turn: Math.atan2(to.y - middle.y, to.x - middle.x),
  };
}

function towards(from, to, distance) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return {
    x: from.x + ((to.x - from.x) / length) * distance,
    y: from.y + ((to.y - from.y) / length) * distance,
  };
}

const at = (point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;

function head(shape, name) {
  const degrees = ((shape.turn * 180) / Math.PI).toFixed(1);
  return s("path", {
    class: `p-head ${name}`,
    d: "M -7 -5 L 5 0 L -7 5 Z",
    transform: `translate(${at(shape.end)}) rotate(${degrees})`,
  });
}

/** Records travel along these. */
function arrow(member, places) {
  const from = places.get(member.source);
  if (!from || !member.running) return null;
  const shape = curve(from, places.get(member.node), -22);
  const name = member.in_sync ? "" : "copy";
  return s(
    "g",
    { "data-from": member.source, "data-to": member.node },
    s("path", { class: `p-arrow ${name}`, d: shape.d }),
    member.in_sync ? s("path", { class: "p-flow", d: shape.d }) : null,
    head(shape, name),
  );
}

/** The last of the ring reports to the master, which closes it. */
function reports(view, places) {
  const last = view.ring?.[view.ring.length - 1];
  if (!view.master || !last || last === view.master || !places.has(last)) return null;
  const shape = curve(
    places.get(last),
    places.get(view.master),
    view.ring.length === 2 ? -22 : places.size > 3 ? 0 : 14,
  );
  return s("g", {}, s("path", { class: "p-arrow report", d: shape.d }), head(shape, "report"));
}

/** A node that has left the view: dead, or not wanted any more. */
function former(name, at) {
  return s(
    "g",
    {
      class: "p-node down",
      transform: `translate(${at.x.toFixed(1)} ${at.y.toFixed(1)})`,
      "data-node": name,
      "data-role": "gone",
    },
    s("circle", { class: "body", r: RADIUS }),
    s("text", { class: "glyph", y: 4 }, "×"),
    s("text", { y: RADIUS + 16, "font-weight": 600 }, shortNode(name)),
    s("text", { class: "sub", y: RADIUS + 30 }, "left the view"),
  );
}

function centre(view, total) {
  if (!view.mirrored)
    return s("g", { class: "p-centre" }, s("text", { x: CENTRE.x, y: 190 }, "not mirrored"));
  const x = CENTRE.x;
  const y = total === 1 ? 185 : total === 2 ? 168 : CENTRE.y + 10;
  return s(
    "g",
    { class: "p-centre" },
    s("text", { x, y: y - 14 }, "epoch"),
    s("text", { class: "big", x, y: y + 8 }, String(view.epoch)),
    view.master ? null : s("text", { class: "bad", x, y: y + 28 }, "no master"),
  );
}

/** How far a member is, as a bar over the last records of the log. */
function bar(row) {
  if (!row.marks || row.flushed === null || row.flushed === undefined) return "";
  const { end, durable } = row.marks;
  const low = Math.max(
    0,
    Math.min(row.flushed, durable, end) - Math.max(10, (end - Math.min(row.flushed, durable)) * 1.5),
  );
  const scale = (seq) => (end <= low ? 120 : ((Math.min(seq, end) - low) / (end - low)) * 120);
  const text =
    `received ${count(row.received)}, flushed ${count(row.flushed)} of ${count(end)}; ` +
    `durable ${count(durable)}; ${bytes(row.bytes_sent || 0)} copied`;
  return s(
    "svg",
    { class: "marks", viewBox: "0 0 124 14", width: 124, height: 14, role: "img", "aria-label": text },
    s("rect", { class: "all", x: 0, y: 3, width: 120, height: 8, rx: 2 }),
    s("rect", {
      class: "received",
      x: 0,
      y: 3,
      width: scale(row.received ?? 0).toFixed(1),
      height: 8,
      rx: 2,
    }),
    s("rect", { class: "flushed", x: 0, y: 5, width: scale(row.flushed).toFixed(1), height: 4, rx: 1 }),
    s("line", { x1: scale(durable).toFixed(1), x2: scale(durable).toFixed(1), y1: 0, y2: 14 }),
  );
}

function sentence(view) {
  const master = view.master ? `The master is ${view.master}.` : "There is no master.";
  const rest = view.members
    .filter((member) => member.node !== view.master)
    .map((member) => `${member.node} is ${member.in_sync ? "a mirror in sync" : member.state}.`)
    .join(" ");
  return `${master} ${rest}`;
}

function legend() {
  const entry = (name, text) => h("li", {}, h("i", { class: name }), text);
  return h(
    "ul",
    { class: "key" },
    entry("k-master", "master"),
    entry("k-mirror", "mirror in sync"),
    entry("k-behind", "unsynchronised mirror"),
    entry("k-down", "down"),
    entry("k-arrow", "records"),
    entry("k-report", "report to the master"),
  );
}
