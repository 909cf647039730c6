// The frame of the Admin pages: what stands at the side.

import { h } from "../dom.js";

const PAGES = [
  ["users", "Users"],
  ["vhosts", "Virtual Hosts"],
  ["policies", "Policies"],
  ["definitions", "Definitions"],
];

export function admin(open, ...content) {
  return h(
    "div",
    { class: "with-side" },
    h("div", {}, content),
    h(
      "nav",
      { class: "side", "aria-label": "Admin pages" },
      h(
        "ul",
        {},
        PAGES.map(([name, label]) =>
          h(
            "li",
            {},
            h("a", { href: `#/${name}`, "aria-current": name === open ? "page" : undefined }, label),
          ),
        ),
      ),
    ),
  );
}

/** A page that only some may see. */
export function refused(open, title, who) {
  return admin(
    open,
    h("h1", {}, title),
    h("p", { class: "read-only" }, `This page is shown to the tag ${who} only.`),
  );
}
