// The form that publishes one message.

import * as api from "../api.js";
import { exchangePart } from "../format.js";
import { form, notice } from "../forms.js";

const NUMBERS = new Set(["delivery_mode", "priority", "timestamp"]);
const NAMES =
  "content_type, content_encoding, correlation_id, reply_to, expiration, message_id, type, " +
  "user_id, app_id, priority, timestamp";

/** `routingKey` is fixed if it is given: a message for one queue. */
export function publishForm(vhost, exchange, routingKey) {
  const fields = [
    routingKey === undefined ? { name: "routing_key", label: "Routing key" } : null,
    {
      name: "mode",
      label: "Delivery mode",
      kind: "select",
      options: [
        ["1", "1: non-persistent"],
        ["2", "2: persistent"],
      ],
      value: "2",
    },
    { name: "headers", label: "Headers", kind: "pairs" },
    { name: "properties", label: "Properties", kind: "pairs", hint: NAMES },
    { name: "payload", label: "Payload", kind: "area", rows: 5 },
    {
      name: "encoding",
      label: "Payload encoding",
      kind: "select",
      options: [
        ["string", "String"],
        ["base64", "Base64"],
      ],
    },
  ].filter(Boolean);
  return form(
    fields,
    "Publish message",
    async (found) => {
      const properties = { delivery_mode: Number(found.mode), headers: found.headers };
      for (const [name, value] of Object.entries(found.properties))
        properties[name] = NUMBERS.has(name) ? Number(value) : String(value);
      const answer = await api.post(`exchanges/${api.path(vhost, exchangePart(exchange))}/publish`, {
        routing_key: routingKey ?? found.routing_key,
        properties,
        payload: found.payload,
        payload_encoding: found.encoding,
      });
      notice(
        answer.routed
          ? "The message was published and routed"
          : "The message was published, but no queue wanted it",
        answer.routed ? "good" : "bad",
      );
    },
    { label: "Publish a message", reset: false },
  );
}
