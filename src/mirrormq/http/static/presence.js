// Tells the node now and then that somebody is here. What a page shows by itself does not keep its log-in
// from idling; what a person does there does, though it may need nothing of the node.

import { current, get } from "./api.js";

const PAUSE_MS = 5 * 60_000;
const SIGNS = ["pointerdown", "pointermove", "keydown", "wheel"];

let told = Date.now();

function noticed() {
  if (!current() || Date.now() - told < PAUSE_MS) return;
  told = Date.now();
  get("mirrormq/session").catch(() => undefined); // over: the log-in is shown; not there: the next sign tells
}

for (const sign of SIGNS) document.addEventListener(sign, noticed, { capture: true, passive: true });
