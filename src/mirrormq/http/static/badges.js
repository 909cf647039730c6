// RabbitMQ's short marks for what a queue or exchange is, each with what it means.

import { h } from "./dom.js";
import { link } from "./format.js";

const STATES = {
  running: "good",
  "in-sync": "good",
  idle: "good",
  flow: "warn",
  syncing: "warn",
  transferring: "warn",
  held: "bad",
  copying: "warn",
  "catching-up": "warn",
  stopped: "warn",
  waiting: "warn",
  restarted: "warn",
  stopped_clean: "bad",
  down: "bad",
  damaged: "bad",
  crashed: "bad",
  blocked: "warn",
  blocking: "warn",
  closed: "bad",
};

/** A state, with a colour and a shape. */
export function state(name) {
  return h("span", { class: `state ${STATES[name] ?? ""}` }, name ?? "?");
}

function badge(text, title, kind = "") {
  return h("abbr", { class: `badge ${kind}`, title }, text);
}

const ARGUMENTS = [
  ["TTL", "message-ttl", "Messages expire after (ms)"],
  ["Exp", "expires", "The queue expires when unused for (ms)"],
  ["Lim", "max-length", "Most messages"],
  ["Lim B", "max-length-bytes", "Most bytes of messages"],
  ["Ovfl", "overflow", "When it is full"],
  ["DLX", "dead-letter-exchange", "Dead letters go to the exchange"],
  ["DLK", "dead-letter-routing-key", "Dead letters get the routing key"],
  ["Pri", "max-priority", "Highest priority"],
  ["SAC", "single-active-consumer", "One active consumer at a time"],
  ["Cur", "copy-from", "A copy of the queue"],
];

/** Features of a queue: D, AD, Excl, TTL, ..., policy, +2, +1 in red. */
export function queueBadges(row) {
  const found = [];
  if (row.arguments?.["x-queue-type"] === "quorum")
    found.push(badge("quorum", "Declared as a quorum queue: mirrored"));
  if (row.durable) found.push(badge("D", "durable: survives a restart"));
  if (row.auto_delete) found.push(badge("AD", "auto-delete: deleted with its last consumer"));
  if (row.exclusive) found.push(badge("Excl", "exclusive: of one connection"));
  const effective = row.effective_policy_definition ?? {};
  for (const [text, name, title] of ARGUMENTS) {
    const value = row.arguments?.[`x-${name}`] ?? effective[name];
    if (value !== undefined && value !== null && value !== "") found.push(badge(text, `${title}: ${value}`));
  }
  found.push(...mirrorBadges(row));
  if (row.policy)
    found.push(
      h("a", { class: "badge policy", href: link("policies"), title: `Policy: ${row.policy}` }, row.policy),
    );
  if (row.operator_policy)
    found.push(badge(row.operator_policy, `Operator policy: ${row.operator_policy}`, "policy"));
  return h("span", { class: "badges" }, found);
}

/** +2 for mirrors in sync, +1 in red for those that are not. */
export function mirrorBadges(row) {
  const synchronised = row.synchronised_slave_nodes ?? [];
  const behind = (row.slave_nodes ?? []).filter((node) => !synchronised.includes(node));
  const found = [];
  if (synchronised.length)
    found.push(badge(`+${synchronised.length}`, `Mirrors in sync: ${synchronised.join(", ")}`, "mirrors"));
  if (behind.length) {
    found.push(badge(`+${behind.length}`, `Unsynchronised mirrors: ${behind.join(", ")}`, "behind"));
  }
  return found;
}

export function exchangeBadges(row) {
  const found = [];
  if (row.durable) found.push(badge("D", "durable: survives a restart"));
  if (row.auto_delete) found.push(badge("AD", "auto-delete: deleted with its last binding"));
  if (row.internal) found.push(badge("I", "internal: clients cannot publish to it"));
  if (row.arguments?.["alternate-exchange"])
    found.push(badge("AE", `Alternate exchange: ${row.arguments["alternate-exchange"]}`));
  if (row.policy)
    found.push(
      h("a", { class: "badge policy", href: link("policies"), title: `Policy: ${row.policy}` }, row.policy),
    );
  return h("span", { class: "badges" }, found);
}

/** The name of a connection or channel; its two ends stay whole when it needs two lines. */
export function endpoints(name) {
  const [from, to] = String(name).split(" -> ");
  return to === undefined ? name : [h("span", { class: "tight" }, `${from} ->`), ` ${to}`];
}
