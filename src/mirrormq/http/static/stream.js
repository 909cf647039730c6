// Live data: one stream for everything a page shows. It comes back by itself, and rests while nobody looks.

import { headers, read } from "./api.js";

const PAUSES = [500, 1000, 2000, 4000, 8000];

/**
 * Follow resources: `onData(place, value)` for each snapshot, `onError(place, fault)` for what is refused,
 * `onState("live" | "connecting" | "paused")`. Returns a function that ends it.
 */
export function follow(topics, onData, onError, onState) {
  let stop = null;
  let isOver = false;
  let failures = 0;
  let timer = 0;

  async function run() {
    const control = new AbortController();
    stop = () => control.abort();
    onState("connecting");
    try {
      const query = topics.map((topic) => `topics=${encodeURIComponent(topic)}`).join("&");
      const answer = await fetch(`api/mirrormq/stream?${query}`, {
        headers: headers(),
        credentials: "omit",
        cache: "no-store",
        signal: control.signal,
      });
      if (!answer.ok) await read(answer);
      onState("live");
      await events(answer.body, (kind, value) => {
        if (control.signal.aborted) return; // what was read before it was left is of no use any more
        failures = 0;
        const place = Number(kind.slice(1));
        if (kind.startsWith("t")) onData(place, value);
        else onError(place, value);
      });
    } catch (error) {
      if (control.signal.aborted) return;
      if (error.status === 400) {
        onError(0, error);
        return;
      }
    }
    if (isOver || control.signal.aborted) return;
    // The node went away, or ended the stream because the session is over: the next request will tell.
    onState("connecting");
    timer = setTimeout(run, PAUSES[Math.min(failures, PAUSES.length - 1)]);
    failures += 1;
  }

  function look() {
    clearTimeout(timer);
    if (document.hidden) {
      stop?.();
      onState("paused");
    } else {
      stop?.();
      run();
    }
  }

  document.addEventListener("visibilitychange", look);
  if (document.hidden) onState("paused");
  else run();
  return () => {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
    stop?.();
  };
}

async function events(body, take) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true });
    let end = held.indexOf("\n\n");
    while (end >= 0) {
      parse(held.slice(0, end), take);
      held = held.slice(end + 2);
      end = held.indexOf("\n\n");
    }
  }
}

function parse(text, take) {
  let kind = "";
  let data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (kind && data) take(kind, JSON.parse(data));
}
