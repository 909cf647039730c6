// Charts over time. Series come from the node's samples where it has them; else from what this page has seen.

import { h, put, say } from "./dom.js";
import { bytes, count, rate } from "./format.js";

const KEPT = 300;
const HEIGHT = 170;
/** Seconds that a chart shows at least. */
const LEAST = 60;

/** series: [{label, colour, value(data) -> number, samples?(data) -> [{sample, timestamp}]}] */
export class Chart {
  constructor(title, series, options = {}) {
    this.title = title;
    this.series = series;
    this.options = options;
    this.times = [];
    this.values = series.map(() => []);
    this.box = h("div", { class: "chart-box" });
    this.legend = h("ul", { class: "legend" });
    this.items = series.map((entry) => {
      const figure = h("strong", { class: "figure" }, "–");
      this.legend.append(
        h(
          "li",
          {},
          h("span", { class: `dot ${entry.colour}`, "aria-hidden": "true" }),
          h("span", {}, entry.label),
          figure,
        ),
      );
      return figure;
    });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, title), this.box, this.legend);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
  }

  add(data) {
    const now = Date.now() / 1000;
    const found = this.series.map((entry) => entry.value(data));
    const samples = this.series.map((entry) => entry.samples?.(data));
    if (samples.some((list) => list?.length > 1)) this.take(samples);
    else this.grow(now, found);
    found.forEach((value, place) => say(this.items[place], this.shown(value)));
    this.draw();
  }

  /** The node has the past: newest first, as RabbitMQ has it. */
  take(samples) {
    const longest = samples.reduce(
      (best, list) => ((list?.length ?? 0) > (best?.length ?? 0) ? list : best),
      [],
    );
    const times = longest.map((entry) => entry.timestamp / 1000).reverse();
    this.times = times;
    this.values = samples.map((list) => {
      const known = new Map((list ?? []).map((entry) => [entry.timestamp / 1000, entry]));
      return times.map((at) => known.get(at)?.sample ?? null);
    });
    this.values = this.values.map((list, place) => (this.series[place].isRate ? rates(times, list) : list));
  }

  grow(now, found) {
    this.times.push(now);
    found.forEach((value, place) => this.values[place].push(value ?? null));
    if (this.times.length > KEPT) {
      this.times.shift();
      for (const list of this.values) list.shift();
    }
  }

  shown(value) {
    if (this.options.unit === "bytes") return bytes(value);
    return this.options.unit === "rate" ? rate(value) : count(value);
  }

  draw() {
    if (this.plot) this.plot.setData([this.times, ...this.values]);
    else if (this.box.clientWidth) this.create();
  }

  create() {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const clock = (_, ticks) => ticks.map((at) => time(at, this.times));
    const axis = {
      stroke: colour("text-soft"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    const shown = (value) => (this.options.unit === "bytes" ? bytes(value) : short(value));
    put(this.box);
    this.plot = new window.uPlot(
      {
        width: this.box.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
        scales: {
          x: { range: () => this.range() },
          y: { range: (_, low, high) => [0, Math.max(high ?? 0, this.options.least ?? 1) * 1.05] },
        },
        axes: [
          { ...axis, space: 70, values: clock },
          { ...axis, size: 52, values: (_, ticks) => ticks.map(shown) },
        ],
        series: [
          {},
          ...this.series.map((entry) => ({
            label: entry.label,
            stroke: colour(entry.colour),
            width: 1.6,
            points: { show: () => this.times.length < 3 },
            spanGaps: false,
            fill: this.options.fill ? `${colour(entry.colour)}22` : undefined,
          })),
        ],
        hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)] },
      },
      [this.times, ...this.values],
      this.box,
    );
    this.plot.root.setAttribute("aria-hidden", "true");
  }

  range() {
    const now = Date.now() / 1000;
    const last = this.times[this.times.length - 1] ?? now;
    return [Math.min(this.times[0] ?? last, last - LEAST), last];
  }

  /** Under the pointer the legend shows the values of then. */
  point(place) {
    this.values.forEach((list, number) => {
      const value = place === null || place === undefined ? list[list.length - 1] : list[place];
      say(this.items[number], this.shown(value));
    });
  }

  resize() {
    if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    else if (this.times.length) this.draw();
  }

  /** The theme changed. */
  recolour() {
    this.plot?.destroy();
    this.plot = null;
    this.draw();
  }

  close() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

function time(at, times) {
  const date = new Date(at * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const isLong = times.length && times[times.length - 1] - times[0] > 7200;
  return isLong
    ? `${two(date.getHours())}:${two(date.getMinutes())}`
    : `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function short(value) {
  if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  return value >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : String(+value.toFixed(2));
}

/** Counters to rates. */
function rates(times, list) {
  return list.map((value, place) => {
    const before = list[place - 1];
    if (place === 0 || value === null || before === null || before === undefined) return null;
    return Math.max(0, (value - before) / (times[place] - times[place - 1]));
  });
}

/** The rate of a counter: the node's own, else from two snapshots of this page. */
export class Rates {
  constructor() {
    this.before = null;
    this.found = {};
  }

  take(stats) {
    const now = performance.now() / 1000;
    for (const [name, value] of Object.entries(stats ?? {})) {
      if (typeof value !== "number") continue;
      const told = stats[`${name}_details`]?.rate;
      const before = this.before?.stats[name];
      if (told !== undefined) this.found[name] = told;
      else if (before !== undefined && now > this.before.now) {
        this.found[name] = Math.max(0, (value - before) / (now - this.before.now));
      }
    }
    if (stats) this.before = { now, stats };
    return this.found;
  }
}

/** The last value of every point is the newest; a small bar of how much of a limit is used. */
export function meter(used, limit, label, shown) {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  const level = share > 0.9 ? "high" : share > 0.7 ? "middle" : "low";
  return h(
    "div",
    { class: "meter" },
    h("progress", { max: 100, value: Math.round(share * 100), class: level, "aria-label": label }),
    h("span", {}, shown),
  );
}
