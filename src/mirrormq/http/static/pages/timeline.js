// Fail-overs and view changes: a picture over time and every event in words.

import { h, section } from "../dom.js";
import { count, link, moment, shortNode } from "../format.js";
import { Timeline } from "../pictures/timeline.js";
import { DataTable } from "../table.js";
import { get } from "../api.js";

export default function page(context) {
  if (!context.may.watch) {
    return [
      h("h1", {}, "Timeline"),
      h("p", { class: "read-only" }, "What happened is shown to the tags monitoring and administrator."),
    ];
  }
  const picture = new Timeline();
  const table = eventsTable();
  const state = { events: [], older: [], before: null, nodes: [] };
  const more = h("button", { type: "button", hidden: true, onclick: () => load() }, "Older events");

  function draw() {
    const known = new Set(state.older.map((event) => event.seq));
    const all = [...state.older, ...state.events.filter((event) => !known.has(event.seq))];
    picture.update(all, state.nodes);
    table.update([...all].reverse());
    more.hidden = state.before === null;
  }

  async function load() {
    const found = await get(`mirrormq/timeline?limit=200&before=${state.before}`);
    state.older = [...found.events, ...state.older];
    state.before = found.before;
    draw();
  }

  context.follow(["mirrormq/timeline?limit=100", "mirrormq/cluster"], (place, found) => {
    context.problem(null);
    if (place === 0) {
      if (!state.older.length) state.before = found.before;
      state.events = found.events;
    } else {
      state.nodes = found.members.map((member) => member.name);
    }
    draw();
  });
  return h(
    "div",
    {},
    h("h1", {}, "Timeline"),
    section("Picture", {}, picture.element),
    section("Events", {}, table.element, h("div", { class: "gap" }), more),
  );
}

const WORDS = {
  "queue.master_changed": (event) =>
    `master ${shortNode(event.from ?? "none")} → ${shortNode(event.to)}: ${event.reason}` +
    `${event.lossy ? ", with a loss" : ""}; ${count(event.messages)} messages, ` +
    `${count(event.requeued)} perhaps delivered before`,
  "queue.master_missing": (event) =>
    `no master; waits for ${(event.waits_for ?? []).map(shortNode).join(" or ") || "nobody"}`,
  "queue.mirror_added": (event) => `mirror ${shortNode(event.mirror)} added`,
  "queue.mirror_removed": (event) => `mirror ${shortNode(event.mirror)} removed: ${event.reason}`,
  "queue.mirror_demoted": (event) => `mirror ${shortNode(event.mirror)} no longer in sync: ${event.reason}`,
  "queue.mirror_synchronised": (event) => `mirror ${shortNode(event.mirror)} is in sync`,
  "queue.sync_started": (event) => `synchronising ${shortNode(event.mirror)} has begun`,
  "queue.synchronised": (event) =>
    `${shortNode(event.mirror)} synchronised in ${count(event.milliseconds)} ms, ${count(event.bytes)} bytes`,
  "node.up": (event) => `node is up, start ${event.start}`,
  "node.down": () => "node is down",
  "node.deleted": () => "node was forgotten",
  "cluster.leader_changed": () => "leads the metadata",
  "alarm.set": (event) => `alarm: ${event.alarm}`,
  "alarm.cleared": (event) => `alarm over: ${event.alarm}`,
};

export function eventsTable({ ofQueue = false } = {}) {
  const columns = [
    {
      label: "When",
      value: (row) => h("time", { datetime: new Date(row.at / 1000).toISOString() }, moment(row.at / 1000)),
    },
    { label: "Event", main: true, value: (row) => row.event },
    { label: "What", long: true, value: (row) => subject(row) },
    { label: "How", long: true, value: (row) => (WORDS[row.event] ? WORDS[row.event](row) : "") },
    { label: "Epoch", num: true, value: (row) => row.epoch ?? "" },
    { label: "Told by", value: (row) => shortNode(row.told_by) },
  ];
  return new DataTable(ofQueue ? columns.filter((column) => column.label !== "What") : columns, {
    key: (row) => String(row.seq),
    caption: "Events, the newest first",
    empty: "nothing has happened",
  });
}

function subject(row) {
  if (row.event.startsWith("queue.")) return h("a", { href: link("queues", row.vhost, row.name) }, row.name);
  if (row.event.startsWith("node.")) return h("a", { href: link("nodes", row.name) }, row.name);
  return row.name ?? "";
}
