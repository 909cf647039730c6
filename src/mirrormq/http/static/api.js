// Requests to the node this page came from, with the token of the session. Errors carry status and reason.

const KEY = "mirrormq.session";

export class ApiError extends Error {
  constructor(status, error, reason) {
    super(typeof reason === "string" ? reason : JSON.stringify(reason));
    this.status = status;
    this.error = error;
  }
}

let session = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
const ended = new Set();

/** Who is logged in: {token, name, tags}, or null. */
export function current() {
  return session;
}

/** Call when the session has ended, by log-out or because the node says so. */
export function onEnd(callback) {
  ended.add(callback);
}

export function headers() {
  return session ? { Authorization: `Bearer ${session.token}` } : {};
}

/** The path of a resource below api/, each part quoted. */
export function path(...parts) {
  return parts.map((part) => encodeURIComponent(part)).join("/");
}

export async function logIn(name, password) {
  const octets = new TextEncoder().encode(`${name}:${password}`);
  const basic = btoa(String.fromCharCode(...octets));
  const found = await send("POST", "mirrormq/session", undefined, { Authorization: `Basic ${basic}` });
  session = { token: found.token, name: found.name, tags: found.tags };
  sessionStorage.setItem(KEY, JSON.stringify(session));
  return session;
}

export async function logOut() {
  try {
    await send("DELETE", "mirrormq/session");
  } catch {
    // The node is not there or has forgotten the session: it is over either way.
  }
  forget("");
}

/** The session is over; say why at the log-in. */
export function forget(why) {
  if (!session) return;
  session = null;
  sessionStorage.removeItem(KEY);
  for (const callback of ended) callback(why);
}

export const get = (where) => send("GET", where);
export const put = (where, body) => send("PUT", where, body);
export const post = (where, body) => send("POST", where, body);
export const remove = (where, body, extra) => send("DELETE", where, body, extra);

// A number above 2^53 does not survive becoming a value here: what is only passed on stays text.
export async function getText(where) {
  const answer = await ask("GET", where);
  return answer.ok ? answer.text() : read(answer);
}
export const postText = async (where, text) => read(await ask("POST", where, text));

async function send(verb, where, body, extra) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  return read(await ask(verb, where, text, extra), extra?.Authorization !== undefined);
}

async function ask(verb, where, text, extra) {
  try {
    return await fetch(`api/${where}`, {
      method: verb,
      // No cookies, and no dialogue of the browser's own when a password is wrong.
      credentials: "omit",
      cache: "no-store",
      headers: {
        ...headers(),
        ...(text === undefined ? {} : { "Content-Type": "application/json" }),
        ...extra,
      },
      body: text,
    });
  } catch {
    throw new ApiError(0, "unreachable", "The node does not answer");
  }
}

/** The answer's JSON; an ApiError if it is an error. */
export async function read(answer, isLogIn = false) {
  const text = answer.status === 204 || answer.status === 304 ? "" : await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = { error: "not_json", reason: text.slice(0, 200) };
  }
  if (answer.ok) return value;
  const fault = new ApiError(answer.status, value?.error ?? "error", value?.reason ?? answer.statusText);
  if (answer.status === 401 && value?.error === "not_authorized" && !isLogIn) forget(fault.message);
  throw fault;
}

/** What the session's user may do. The node decides; this only spares people buttons it would refuse. */
export function may() {
  const tags = session?.tags ?? [];
  const isAdministrator = tags.includes("administrator");
  const isPolicymaker = isAdministrator || tags.includes("policymaker");
  const isMonitor = isAdministrator || tags.includes("monitoring");
  return {
    administer: isAdministrator,
    setPolicies: isPolicymaker,
    watch: isMonitor,
    // Somebody who has the tag `monitoring` and no more came to look.
    change: isAdministrator || isPolicymaker || tags.includes("management"),
  };
}
