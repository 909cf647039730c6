// What can be done with a queue: take messages, move its master, promote, purge, delete.

import * as api from "../api.js";
import { facts, h, put } from "../dom.js";
import { bytes, exchangeName, pairs } from "../format.js";
import { attempt, confirmed, form, notice } from "../forms.js";

const MODES = [
  ["ack_requeue_true", "Nack message requeue true"],
  ["ack_requeue_false", "Automatic ack"],
  ["reject_requeue_true", "Reject requeue true"],
  ["reject_requeue_false", "Reject requeue false"],
];

export function getMessages(where) {
  const found = h("div", { "aria-live": "polite" });
  return h(
    "div",
    {},
    h(
      "p",
      { class: "soft" },
      "Taking messages changes the queue: those that are put back are marked as redelivered.",
    ),
    form(
      [
        { name: "ackmode", label: "Ack mode", kind: "select", options: MODES },
        {
          name: "encoding",
          label: "Encoding",
          kind: "select",
          options: [
            ["auto", "Auto string / base64"],
            ["base64", "base64"],
          ],
        },
        {
          name: "from",
          label: "From",
          kind: "select",
          options: [
            ["head", "Head: the oldest"],
            ["tail", "Tail: the newest"],
          ],
        },
        { name: "count", label: "Messages", kind: "number", value: 1, min: 1, max: 500, required: true },
      ],
      "Get message(s)",
      async (values) => {
        const body = {
          ackmode: values.ackmode,
          encoding: values.encoding,
          count: values.count,
          truncate: 50000,
        };
        if (values.from === "tail") body.from = "tail";
        const messages = await api.post(`${where}/get`, body);
        put(found, messages.length ? messages.map(shown) : h("p", { class: "empty" }, "The queue is empty"));
      },
      { reset: false, label: "Get messages" },
    ),
    found,
  );
}

function shown(message, place) {
  const headers = message.properties?.headers;
  const properties = { ...message.properties };
  delete properties.headers;
  return h(
    "article",
    { class: "message" },
    h("h3", {}, `Message ${place + 1}`),
    facts([
      ["Exchange", exchangeName(message.exchange)],
      ["Routing key", message.routing_key],
      ["Redelivered", message.redelivered ? "yes" : "no"],
      ["Still in the queue", message.message_count === undefined ? null : String(message.message_count)],
      ["Properties", pairs(properties).join(", ") || null],
      ["Headers", pairs(headers).join(", ") || null],
      ["Payload", `${bytes(message.payload_bytes)}, ${message.payload_encoding}`],
    ]),
    h("pre", { tabindex: "0", "aria-label": "Payload" }, message.payload),
  );
}

export function moveForm(vhost, name, others) {
  if (!others.length) return h("p", {}, "There is no other node with a copy.");
  const options = others.map((member) => [
    member.node,
    `${member.node}${member.in_sync ? "" : " (unsynchronised)"}`,
  ]);
  return form(
    [{ name: "node", label: "Move master to", kind: "select", options }],
    "Move master",
    async ({ node }) => {
      const found = await api.post(`mirrormq/queues/${api.path(vhost, name)}/move`, { node });
      notice(`${found.master} is the master`);
    },
    { reset: false, label: "Move the master" },
  );
}

/** A queue without a master: show what a promotion would lose before it is made. */
export function promoteForm(vhost, name) {
  const where = `mirrormq/queues/${api.path(vhost, name)}/promote`;
  const box = h("div");
  const look = async () => {
    const plan = await api.post(where, { plan: true });
    const lost = plan.lossy ? "Messages that only a missing node has will be lost." : "Nothing will be lost.";
    put(
      box,
      h("p", {}, `${plan.node} would be the master. ${lost}`),
      h(
        "button",
        {
          type: "button",
          class: "danger",
          onclick: async () => {
            if (!(await confirmed("Promote by force?", lost, "Promote"))) return;
            await attempt(
              () => api.post(where, { node: plan.node, accept_loss: plan.lossy }),
              `${plan.node} is the master`,
            );
          },
        },
        `Promote ${plan.node}`,
      ),
    );
  };
  return h(
    "div",
    {},
    h("button", { type: "button", onclick: () => attempt(look) }, "What could be promoted?"),
    box,
  );
}

export function deletion(context, where, name) {
  const purge = h(
    "button",
    {
      type: "button",
      class: "danger",
      onclick: async () => {
        if (!(await confirmed("Purge this queue?", `All ready messages of ${name} will be gone.`, "Purge")))
          return;
        await attempt(() => api.remove(`${where}/contents`), `Queue ${name} is purged`);
      },
    },
    "Purge messages",
  );
  const drop = form(
    [
      { name: "ifEmpty", label: "Only if empty", kind: "check" },
      { name: "ifUnused", label: "Only if unused", kind: "check" },
    ],
    "Delete queue",
    async ({ ifEmpty, ifUnused }) => {
      if (!(await confirmed("Delete this queue?", `${name} and its messages will be gone.`, "Delete")))
        return;
      const query = [ifEmpty && "if-empty=true", ifUnused && "if-unused=true"].filter(Boolean).join("&");
      await api.remove(`${where}${query ? `?${query}` : ""}`);
      notice(`Queue ${name} is gone`);
      context.go("#/queues");
    },
    { danger: true, reset: false, label: "Delete this queue" },
  );
  return h("div", {}, h("div", { class: "buttons" }, purge), h("h3", {}, "Delete"), drop);
}
