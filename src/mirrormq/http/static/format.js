// Numbers, times and names as people read them.

const COUNT = new Intl.NumberFormat("en-GB");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(value) {
  return value === undefined || value === null ? "–" : COUNT.format(value);
}

export function rate(value) {
  if (value === undefined || value === null) return "–";
  return `${value >= 100 ? COUNT.format(Math.round(value)) : COUNT.format(Math.round(value * 10) / 10)}/s`;
}

export function bytes(value) {
  if (value === undefined || value === null) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(value < 10 ? 1 : 0) : value} ${UNITS[unit]}`;
}

export function percent(value) {
  return value === undefined || value === null ? "–" : `${Math.floor(value)} %`;
}

/** A length of time given in milliseconds. */
export function span(ms) {
  if (ms === undefined || ms === null) return "–";
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** A point in time, given in milliseconds since 1970. */
export function moment(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return new Date().toDateString() === at.toDateString() ? time : `${day} ${time}`;
}

/** A node without the cluster's common part, for narrow places. */
export function shortNode(name) {
  const [first, host] = String(name).split("@");
  return first === "mirrormq" || first === "rabbit" ? (host ?? first) : first;
}

export function exchangeName(name) {
  return name === "" ? "(AMQP default)" : name;
}

/** Arguments and definitions as `key: value` lines. */
export function pairs(map) {
  return Object.entries(map ?? {}).map(
    ([key, value]) =>
      `${key}: ${typeof value === "object" && value !== null ? JSON.stringify(value) : value}`,
  );
}

/** The address of a page, each part quoted. */
export function link(...parts) {
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** An exchange's part of a path: the one without a name has a name there. */
export function exchangePart(name) {
  return name === "" ? "amq.default" : name;
}
