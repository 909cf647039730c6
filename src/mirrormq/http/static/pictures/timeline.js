// What happened, over time: a lane per node (there or not), a lane per queue (who was its master).

import { h, putChanged, s } from "../dom.js";
import { moment, shortNode } from "../format.js";

const LANE = 26;
const LEFT = 150;
const WIDTH = 1000;
const QUEUES_MAX = 12;

export class Timeline {
  constructor() {
    this.svg = s("svg", {
      class: "picture time",
      role: "img",
      "aria-labelledby": "time-title time-text",
    });
    this.key = h("ul", { class: "key" });
    this.element = h("div", {}, h("div", { class: "table-box" }, this.svg), this.key);
  }

  /** events: oldest first; nodes: names. */
  update(events, nodes) {
    const now = Date.now() * 1000;
    const first = events.length ? events[0].at : now - 60e6;
    const range = { first, last: Math.max(now, first + 10e6) };
    const x = (at) => LEFT + ((at - range.first) / (range.last - range.first)) * (WIDTH - LEFT - 16);
    const queues = latestQueues(events);
    const height = (nodes.length + queues.length) * LANE + 40;
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    putChanged(
      this.svg,
      s("title", { id: "time-title" }, "Fail-overs and view changes over time"),
      s(
        "desc",
        { id: "time-text" },
        `${events.length} events since ${moment(range.first / 1000)}; the table below has them all.`,
      ),
      axis(range, x, height),
      nodes.map((name, place) => nodeLane(name, place, events, range, x)),
      queues.map((queue, place) => queueLane(queue, place + nodes.length, events, nodes, range, x)),
    );
    putChanged(
      this.key,
      nodes.map((name, place) =>
        h("li", {}, h("span", { class: `dot c${(place % 5) + 1}` }), `master on ${shortNode(name)}`),
      ),
      h("li", {}, "▲ leads the metadata"),
      h("li", {}, "◆ fail-over"),
      h("li", {}, "● mirror in sync"),
      h("li", {}, "○ mirror gone or behind"),
    );
  }
}

function latestQueues(events) {
  const found = new Map();
  for (const event of [...events].reverse()) {
    if (event.event.startsWith("queue.") && event.name) {
      const key = `${event.vhost}\n${event.name}`;
      if (!found.has(key) && found.size < QUEUES_MAX)
        found.set(key, { vhost: event.vhost, name: event.name });
    }
  }
  return [...found.values()];
}

function axis(range, x, height) {
  const steps = 6;
  return s(
    "g",
    { class: "t-axis" },
    Array.from({ length: steps + 1 }, (_, place) => {
      const at = range.first + ((range.last - range.first) * place) / steps;
      const anchor = place === steps ? "end" : place === 0 ? "start" : "middle";
      return s(
        "g",
        {},
        s("line", { x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: 22, y2: height - 6 }),
        s("text", { x: x(at).toFixed(1), y: 14, "text-anchor": anchor }, moment(at / 1000)),
      );
    }),
  );
}

function lane(name, place, ...children) {
  const y = 28 + place * LANE;
  const short = name.length > 20 ? `${name.slice(0, 19)}…` : name;
  return s(
    "g",
    { class: "t-lane", transform: `translate(0 ${y})` },
    s("text", { class: "name", x: LEFT - 10, y: 16, "text-anchor": "end" }, short, s("title", {}, name)),
    s("line", { class: "base", x1: LEFT, x2: WIDTH - 16, y1: 12, y2: 12 }),
    children,
  );
}

function bars(pieces, x) {
  return pieces.map((piece) =>
    s(
      "rect",
      {
        class: `t-bar ${piece.kind}`,
        x: x(piece.from).toFixed(1),
        width: Math.max(2, x(piece.to) - x(piece.from)).toFixed(1),
        y: 6,
        height: 12,
        rx: 2,
      },
      s("title", {}, piece.text),
    ),
  );
}

function nodeLane(name, place, events, range, x) {
  const own = events.filter(
    (event) => (event.event === "node.up" || event.event === "node.down") && event.name === name,
  );
  const pieces = [];
  let since = range.first;
  let isUp = own.length ? own[0].event === "node.down" : true;
  for (const event of own) {
    pieces.push({
      from: since,
      to: event.at,
      kind: isUp ? "up" : "down",
      text: `${name} ${isUp ? "up" : "down"}`,
    });
    since = event.at;
    isUp = event.event === "node.up";
  }
  pieces.push({
    from: since,
    to: range.last,
    kind: isUp ? "up" : "down",
    text: `${name} ${isUp ? "up" : "down"}`,
  });
  const led = events.filter((event) => event.event === "cluster.leader_changed" && event.name === name);
  return lane(
    shortNode(name),
    place,
    bars(pieces, x),
    led.map((event) => mark(event, x(event.at), "warn", "M -5 4 L 0 -6 L 5 4 Z", "leads the metadata")),
  );
}

function queueLane(queue, place, events, nodes, range, x) {
  const own = events.filter((event) => event.vhost === queue.vhost && event.name === queue.name);
  const changes = own.filter(
    (event) => event.event === "queue.master_changed" || event.event === "queue.master_missing",
  );
  const pieces = [];
  let since = range.first;
  let master = changes.length ? (changes[0].from ?? null) : null;
  const piece = (to) => {
    const number = nodes.indexOf(master);
    if (master || changes.length)
      pieces.push({
        from: since,
        to,
        kind: number < 0 ? "none" : `n${number % 5}`,
        text: master ? `master ${master}` : "no master",
      });
  };
  for (const event of changes) {
    piece(event.at);
    since = event.at;
    master = event.event === "queue.master_changed" ? event.to : null;
  }
  piece(range.last);
  return lane(
    queue.name,
    place,
    bars(pieces, x),
    own.map((event) => queueMark(event, x(event.at))),
  );
}

function queueMark(event, at) {
  if (event.event === "queue.master_changed")
    return mark(event, at, "bad", "M 0 -8 L 7 0 L 0 8 L -7 0 Z", `${event.from} → ${event.to}`);
  const isGood = event.event === "queue.mirror_synchronised";
  if (!isGood && event.event !== "queue.mirror_removed" && event.event !== "queue.mirror_demoted")
    return null;
  return mark(event, at, isGood ? "good" : "", "M -4 0 A 4 4 0 1 1 4 0 A 4 4 0 1 1 -4 0 Z", event.mirror);
}

function mark(event, at, kind, shape, text) {
  return s(
    "path",
    { class: `t-mark ${kind}`, d: shape, transform: `translate(${at.toFixed(1)} 12)` },
    s("title", {}, `${moment(event.at / 1000)} ${event.event} ${text ?? ""}`),
  );
}
