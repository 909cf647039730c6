// Spark: who reads and writes in bulk, and how far behind each reader is.

import * as api from "../api.js";
import { h, section } from "../dom.js";
import { bytes, count, link, moment, shortNode } from "../format.js";
import { attempt, confirmed } from "../forms.js";
import { state } from "../badges.js";
import { DataTable } from "../table.js";

export default function page(context) {
  const cursors = new DataTable(
    [
      {
        label: "Queue",
        long: true,
        value: (row) => h("a", { href: link("queues", row.vhost, row.queue) }, row.queue),
      },
      { label: "Virtual host", value: (row) => row.vhost },
      { label: "Cursor", long: true, value: (row) => row.name },
      { label: "Mode", value: (row) => row.mode },
      { label: "Stands at", num: true, value: (row) => count(row.seq) },
      {
        label: "Lag",
        num: true,
        title: "Records behind the durable mark",
        value: (row) => (row.lost ? h("span", { class: "state bad" }, `lost: ${row.lost}`) : count(row.lag)),
      },
      { label: "Holds", num: true, value: (row) => bytes(row.held_bytes) },
      { label: "Moved at", value: (row) => moment(row.moved_at / 1000) },
      {
        label: "Reader",
        value: (row) =>
          [row.reader, row.reader_node && `on ${shortNode(row.reader_node)}`].filter(Boolean).join(" ") ||
          "–",
      },
      { label: "", value: (row) => drop(context, row) },
    ],
    {
      key: (row) => `${row.vhost}/${row.queue}/${row.name}`,
      caption: "Cursors",
      empty: "no cursors: nothing reads a queue in bulk",
    },
  );
  const readers = new DataTable(
    [
      {
        label: "Connection",
        long: true,
        value: (row) => h("a", { href: link("connections", row.name) }, row.name),
      },
      { label: "Query", long: true, value: (row) => row.user_provided_name ?? "" },
      { label: "Client", value: (row) => row.product ?? "" },
      { label: "User name", value: (row) => row.user },
      { label: "Node", value: (row) => shortNode(row.node) },
      { label: "State", value: (row) => state(row.state) },
      { label: "Sent", num: true, value: (row) => bytes(row.send_oct) },
      { label: "Received", num: true, value: (row) => bytes(row.recv_oct) },
    ],
    {
      key: (row) => row.name,
      caption: "Readers and writers in bulk",
      empty: "nobody reads or writes in bulk now",
    },
  );
  const sinks = new DataTable(
    [
      { label: "Sink", long: true, value: (row) => row.sink },
      { label: "Virtual host", value: (row) => row.vhost },
      { label: "Owner", value: (row) => row.owner ?? "" },
      { label: "Node", value: (row) => shortNode(row.node) },
      { label: "State", value: (row) => state(row.state) },
      { label: "Staged messages", num: true, value: (row) => count(row.messages) },
    ],
    { key: (row) => `${row.vhost}/${row.sink}`, caption: "Sinks", empty: "no sinks" },
  );
  const mirrors = new DataTable(
    [
      { label: "Virtual host", value: (row) => row.vhost },
      { label: "Mirrors the cluster", value: (row) => row.mirror_of },
    ],
    {
      key: (row) => row.vhost,
      caption: "Virtual hosts that mirror another cluster",
      empty: "no virtual host mirrors another cluster",
    },
  );
  if (context.may.watch) {
    context.follow(["mirrormq/pipelines"], (_, found) => {
      context.problem(null);
      cursors.update(found.cursors);
      readers.update(found.readers);
      sinks.update(found.sinks);
      mirrors.update(found.mirrors);
    });
  } else {
    context.follow(["mirrormq/cursors"], (_, found) => cursors.update(found));
  }
  return h(
    "div",
    {},
    h("h1", {}, "Spark: cursors and pipelines"),
    section("Cursors", {}, cursors.element),
    context.may.watch
      ? [
          section("Readers and writers", {}, readers.element),
          section("Sinks", {}, sinks.element),
          section("Mirrored clusters", { open: false }, mirrors.element),
        ]
      : null,
    h(
      "p",
      { class: "soft" },
      "The runs of jobs are known where they run: ",
      h("code", {}, "mirrormq pipeline status"),
    ),
  );
}

function drop(context, row) {
  if (!context.may.administer) return "";
  return h(
    "button",
    {
      type: "button",
      "aria-label": `Drop cursor ${row.name} of ${row.queue}`,
      onclick: async () => {
        if (!(await confirmed("Drop this cursor?", `The reader of ${row.name} has to begin anew.`, "Drop")))
          return;
        await attempt(
          () => api.remove(`mirrormq/cursors/${api.path(row.vhost, row.queue, row.name)}`),
          "The cursor is gone",
        );
      },
    },
    "Drop",
  );
}
