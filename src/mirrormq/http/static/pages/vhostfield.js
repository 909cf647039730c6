// The field in which forms ask for a virtual host: those the user may see.

import * as api from "../api.js";

export async function vhostField(context, name = "vhost") {
  const found = await api.get("vhosts?columns=name").catch(() => []);
  return {
    name,
    label: "Virtual host",
    kind: "select",
    options: found.map((row) => row.name),
    value: context.vhost || "/",
  };
}
