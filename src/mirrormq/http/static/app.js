// The frame around every page: log-in, tabs, the address, and what a page is given to work with.

import * as api from "./api.js";
import { h, put, say } from "./dom.js";
import "./presence.js";
import { follow } from "./stream.js";

/** Address → module. `tab` is what is marked as open, `needs` what the user must be allowed. */
const PAGES = [
  [/^\/$/, "overview", "overview"],
  [/^\/nodes\/([^/]+)$/, "node", "overview"],
  [/^\/connections$/, "connections", "connections"],
  [/^\/connections\/([^/]+)$/, "connection", "connections"],
  [/^\/channels$/, "channels", "channels"],
  [/^\/channels\/([^/]+)$/, "channel", "channels"],
  [/^\/exchanges$/, "exchanges", "exchanges"],
  [/^\/exchanges\/([^/]+)\/([^/]+)$/, "exchange", "exchanges"],
  [/^\/queues$/, "queues", "queues"],
  [/^\/queues\/([^/]+)\/([^/]+)$/, "queue", "queues"],
  [/^\/cluster$/, "cluster", "cluster"],
  [/^\/timeline$/, "timeline", "timeline"],
  [/^\/cursors$/, "cursors", "cursors"],
  [/^\/users$/, "users", "admin"],
  [/^\/users\/([^/]+)$/, "user", "admin"],
  [/^\/vhosts$/, "vhosts", "admin"],
  [/^\/policies$/, "policies", "admin"],
  [/^\/definitions$/, "definitions", "admin"],
];

const TABS = [
  ["overview", "Overview", "#/"],
  ["connections", "Connections", "#/connections"],
  ["channels", "Channels", "#/channels"],
  ["exchanges", "Exchanges", "#/exchanges"],
  ["queues", "Queues", "#/queues"],
  ["cluster", "Cluster", "#/cluster"],
  ["timeline", "Timeline", "#/timeline"],
  ["cursors", "Spark", "#/cursors"],
  ["admin", "Admin", "#/policies"],
];

const VHOST = "mirrormq.vhost";

const root = document.getElementById("app");
let frame = null;
let leave = [];
let visit = 0;
let isAwaited = false; // somebody went to a page that is not shown yet
let hasVhosts = true;
let vhost = sessionStorage.getItem(VHOST) ?? "";

api.onEnd((why) => showLogIn(why));
window.addEventListener("hashchange", () => route(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address names the page; it must not name a place on it instead.
  event.preventDefault();
  document.getElementById("main")?.focus();
});
if (api.current()) start();
else showLogIn("");

async function showLogIn(why) {
  end();
  frame = null;
  visit += 1; // a page that is being fetched must not show itself any more
  const { default: page } = await import("./pages/login.js");
  put(root, notices(), page(why, start));
  root.querySelector("input")?.focus();
}

function notices() {
  return h("div", { id: "notices", role: "status", "aria-live": "polite" });
}

function start() {
  frame = makeFrame();
  put(root, frame.element, notices());
  api
    .get("overview?columns=cluster_name,mirrormq_version,node")
    .then((found) => {
      say(frame.cluster, found.cluster_name);
      say(frame.version, `MirrorMQ ${found.mirrormq_version}`);
      say(frame.node, found.node);
      document.title = `${found.cluster_name} · MirrorMQ`;
    })
    .catch(() => undefined);
  drawVhosts().then(() => route());
}

function makeFrame() {
  const session = api.current();
  const parts = {
    cluster: h("strong", {}, ""),
    version: h("span", {}, ""),
    node: h("span", {}, ""),
    vhost: h("select", { onchange: (event) => chooseVhost(event.target.value) }),
    live: h("span", { class: "live", title: "Whether what you see is kept up to date" }, "…"),
    main: h("main", { id: "main", tabindex: "-1" }),
    tabs: new Map(),
  };
  const links = TABS.map(([name, label, href]) => {
    const link = h("a", { href }, label);
    parts.tabs.set(name, link);
    return h("li", {}, link);
  });
  parts.element = h(
    "div",
    { class: "frame" },
    h(
      "header",
      { class: "top" },
      h(
        "a",
        { class: "brand", href: "#/" },
        h("img", { src: "ui/icon.svg", alt: "", width: 26, height: 26 }),
        "MirrorMQ",
      ),
      h("div", { class: "where" }, parts.cluster, h("span", { class: "soft" }, parts.node)),
      h(
        "div",
        { class: "who" },
        parts.live,
        h("label", {}, "Virtual host", parts.vhost),
        themeSwitch(),
        h("span", { class: "user" }, "User ", h("strong", {}, session.name)),
        h("button", { type: "button", onclick: () => api.logOut() }, "Log out"),
      ),
    ),
    h("nav", { class: "tabs", "aria-label": "Pages" }, h("ul", {}, links)),
    parts.main,
    h("footer", {}, parts.version, " · RabbitMQ 3.10's HTTP API at /api"),
  );
  return parts;
}

function chooseVhost(name) {
  vhost = name;
  sessionStorage.setItem(VHOST, name);
  route();
}

async function drawVhosts() {
  const found = await api.get("vhosts?columns=name").catch(() => []);
  if (!frame) return; // logged out meanwhile
  const names = found.map((row) => row.name);
  if (!names.includes(vhost)) vhost = "";
  hasVhosts = names.length > 1;
  put(
    frame.vhost,
    h("option", { value: "" }, "All"),
    names.map((name) => h("option", { value: name, selected: name === vhost }, name)),
  );
}

function themeSwitch() {
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const button = h("button", {
    type: "button",
    class: "theme",
    onclick: () => {
      const wanted = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = wanted;
      localStorage.setItem("mirrormq.theme", wanted);
      draw();
      document.dispatchEvent(new Event("themechange"));
    },
  });
  const draw = () => {
    button.textContent = isDark() ? "☀" : "☾";
    button.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
    button.title = isDark() ? "Light colours" : "Dark colours";
  };
  draw();
  return button;
}

function end() {
  const work = leave;
  leave = [];
  for (const step of work) step();
}

function split() {
  const text = location.hash.replace(/^#/, "") || "/";
  const [path, query] = text.split("?");
  return { path: path.startsWith("/") ? path : "/", query: new URLSearchParams(query ?? "") };
}

/** What an address names; null if it is not this page's, or was written wrong by hand. */
function partsOf(match) {
  try {
    return match && match.slice(1).map(decodeURIComponent);
  } catch {
    return null;
  }
}

/**
 * `isWay`: somebody went there, so the page is what they want to read or hear next. That holds until it is
 * shown, though it be drawn once more meanwhile, as when the list of virtual hosts comes after a fast click.
 */
async function route(isWay = false) {
  if (!frame || !api.current()) return;
  isAwaited ||= isWay;
  const { path, query } = split();
  const found = PAGES.map(([pattern, name, tab]) => ({ parts: partsOf(pattern.exec(path)), name, tab })).find(
    (entry) => entry.parts,
  );
  end();
  visit += 1;
  const mine = visit;
  for (const [name, link] of frame.tabs) {
    if (found && name === found.tab) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "center" });
    } else link.removeAttribute("aria-current");
  }
  if (!found) {
    put(frame.main, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "Go to the overview")));
    return;
  }
  const context = makeContext(found.parts, query, path);
  try {
    const module = await import(`./pages/${found.name}.js`);
    if (mine !== visit) return;
    const content = await module.default(context);
    if (mine !== visit) return;
    put(frame.main, context.problemLine, content);
    window.scrollTo(0, 0);
    const heading = frame.main.querySelector("h1");
    if (heading && (isAwaited || document.activeElement === document.body)) {
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
    }
    isAwaited = false;
  } catch (error) {
    if (mine === visit)
      put(
        frame.main,
        h("h1", {}, "This page cannot be shown"),
        h("p", { class: "problem", role: "alert" }, error.message),
      );
  }
}

/** What a page works with. What it opens here is closed when it is left. */
function makeContext(parameters, query, path) {
  const problemLine = h("p", { class: "problem", role: "alert", hidden: true });
  const states = new Map();
  const show = () => {
    const all = [...states.values()];
    const state = all.includes("connecting") ? "connecting" : all.includes("paused") ? "paused" : "live";
    frame.live.className = `live ${all.length ? state : "still"}`;
    const words = { live: "live", connecting: "connecting …", paused: "paused" };
    say(frame.live, all.length ? words[state] : "");
  };
  show();
  return {
    parameters,
    query,
    may: api.may(),
    vhost,
    hasVhosts: hasVhosts && !vhost,
    vhostsChanged: drawVhosts,
    problemLine,
    problem(fault) {
      problemLine.hidden = !fault;
      say(problemLine, fault ? (fault.reason ?? fault.message ?? String(fault)) : "");
    },
    follow(topics, onData, onError) {
      const key = {};
      const failed = onError ?? ((_, fault) => this.problem(fault));
      const awaited = new Set(topics.keys());
      const main = frame.main;
      main.setAttribute("aria-busy", "true");
      const came = (take) => (place, value) => {
        take(place, value);
        awaited.delete(place);
        if (!awaited.size) main.removeAttribute("aria-busy");
      };
      const stop = follow(topics, came(onData), came(failed), (state) => {
        states.set(key, state);
        show();
      });
      const once = () => {
        stop();
        states.delete(key);
        main.removeAttribute("aria-busy");
      };
      leave.push(once);
      return once;
    },
    onLeave(step) {
      leave.push(step);
    },
    remember(text) {
      history.replaceState(null, "", `#${path}${text ? `?${text}` : ""}`);
    },
    go(href) {
      location.hash = href;
    },
    again: () => route(),
  };
}
