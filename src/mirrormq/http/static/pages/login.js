// The log-in. The password is sent once and kept nowhere; a token stands for it until log-out.

import { logIn } from "../api.js";
import { h } from "../dom.js";
import { form } from "../forms.js";

export default function page(why, start) {
  const fields = [
    { name: "name", label: "Username", required: true, autocomplete: "username" },
    {
      name: "password",
      label: "Password",
      kind: "password",
      required: true,
      autocomplete: "current-password",
    },
  ];
  return h(
    "main",
    { id: "main", class: "login" },
    h("h1", {}, h("img", { src: "ui/icon.svg", alt: "", width: 34, height: 34 }), "MirrorMQ"),
    why ? h("p", { class: "problem", role: "alert" }, why) : null,
    form(
      fields,
      "Log in",
      async ({ name, password }) => {
        await logIn(name, password);
        start();
      },
      { reset: false, label: "Log in" },
    ),
  );
}
