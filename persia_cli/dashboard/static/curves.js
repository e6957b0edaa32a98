// Curves of metrics over steps, samples or time, of one run or several, to which new lines are added.

import { COLOURS, duration, h, number } from "./parts.js";

const MAX_ROWS = 6000, HEIGHT = 230;
const PLACE = new Set(["time", "step", "samples", "eval_samples"]);
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 5 });
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The declared key that a key of a line belongs to: its own, or that before the name of a label or the length of a list.
function declared(key, keys) {
  const plain = key.replace(/@[0-9]+/, "@K");
  if (keys[plain]) return plain;
  const fitting = Object.keys(keys).filter((each) => plain.startsWith(`${each}_`));
  return fitting.sort((a, b) => b.length - a.length)[0] ?? plain;
}

export class Curves {
  constructor(runs, keys) {
    this.runs = runs;
    this.keys = keys;
    this.shown = new Set(runs);
    this.splits = new Map(runs.map((run) => [run, {}]));
    this.plots = new Map();
    this.panels = h("div", { class: "panels" });
    this.x = "step";
    this.node = h("section", { "aria-label": "Curves" }, this.controls(), this.panels);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.clear(); this.draw(); });
    new ResizeObserver(() => this.resize()).observe(this.panels);
  }

  controls() {
    const axis = h("select", { onchange: (event) => { this.x = event.target.value; this.clear(); this.draw(); } },
      ["step", "samples", "minutes"].map((each) => h("option", { value: each }, each)));
    const boxes = this.runs.length < 2 ? [] : this.runs.map((run, order) =>
      h("label", {}, h("input", { type: "checkbox", checked: true, onchange: () => this.toggle(run) }), " ", this.chip(order), ` ${run}`));
    return h("div", { class: "bar" }, h("label", {}, "Over ", axis), boxes,
      h("span", { class: "soft" }, "Drag to zoom, double-click to see all."));
  }

  chip(order) {
    const chip = h("span", { "aria-hidden": "true" }, "■");
    chip.style.color = `var(--series-${order % COLOURS})`;
    return chip;
  }

  toggle(run) {
    if (!this.shown.delete(run)) this.shown.add(run);
    this.clear();
    this.draw();
  }

  // Adds the lines of an event; with `all` they replace those of the run.
  take({ run, all, splits }) {
    if (all) this.splits.set(run, {});
    const mine = this.splits.get(run);
    for (const [split, columns] of Object.entries(splits ?? {})) {
      const old = (mine[split] ??= {});
      const before = old.step?.length ?? 0, added = columns.step.length;
      for (const key of new Set([...Object.keys(old), ...Object.keys(columns)])) {
        old[key] = (old[key] ?? Array(before).fill(null)).concat(columns[key] ?? Array(added).fill(null));
        if (before + added > MAX_ROWS) old[key] = old[key].filter((_, row) => row % 2 || row > MAX_ROWS);
      }
    }
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  xs(run, columns) {
    if (this.x !== "minutes") return columns[this.x];
    const begin = this.splits.get(run).train?.time[0] ?? columns.time[0];
    return columns.time.map((time) => (time - begin) / 60);
  }

  // Returns the curves of each chart: Map of declared key to { run, split, key, order }.
  charts() {
    const charts = new Map();
    this.runs.forEach((run, order) => {
      if (!this.shown.has(run)) return;
      for (const [split, columns] of Object.entries(this.splits.get(run))) {
        for (const key of Object.keys(columns)) {
          const chart = declared(key, this.keys);
          if (PLACE.has(key) || (split !== "train" && !this.keys[chart]?.scored)) continue;
          if (!charts.has(chart)) charts.set(chart, []);
          charts.get(chart).push({ run, split, key, order });
        }
      }
    });
    const ranks = Object.keys(this.keys);
    return new Map([...charts].sort(([a], [b]) => ranks.indexOf(a) - ranks.indexOf(b)));
  }

  draw() {
    for (const [chart, curves] of this.charts()) {
      const tables = curves.map(({ run, split, key }) => {
        const columns = this.splits.get(run)[split];
        return [this.xs(run, columns), columns[key]];
      });
      const data = uPlot.join(tables), name = JSON.stringify(curves);
      const last = curves.map((curve, n) => `${this.label(curve)} ${number(tables[n][1].findLast((y) => y != null))}`);
      let plot = this.plots.get(chart);
      if (plot?.name !== name) {
        const before = plot?.figure;
        plot = this.plot(chart, curves, data);
        plot.name = name;
        if (before) { this.plots.get(chart).u.destroy(); before.replaceWith(plot.figure); } else this.panels.append(plot.figure);
        this.plots.set(chart, plot);
      } else {
        const { min, max } = plot.u.scales.x, xs = plot.u.data[0];
        plot.u.setData(data, min === xs[0] && max === xs.at(-1));
      }
      plot.u.root.querySelector("canvas").setAttribute("aria-label", `${chart} over ${this.x}: ${last.join(", ")}`);
    }
  }

  label({ run, split, key }) {
    const part = { train: "training", eval: "evaluation" }[split] ?? split;
    return this.runs.length > 1 ? `${run} ${key} ${part}` : `${key} ${part}`;
  }

  plot(chart, curves, data) {
    const ink = css("--soft"), grid = { stroke: css("--line"), width: 1 };
    const keys = [...new Set(curves.map(({ key }) => key))];
    const series = curves.map((curve) => {
      const isTraining = curve.split === "train";
      const order = this.runs.length > 1 ? curve.order : keys.indexOf(curve.key) * 2 + (isTraining ? 0 : 1);
      const colour = css(`--series-${order % COLOURS}`);
      return { label: this.label(curve), stroke: colour, width: isTraining ? 1.4 : 1.2, spanGaps: true,
        dash: isTraining ? [] : [5, 4], points: isTraining ? undefined : { show: true, size: 5, fill: colour }, value: (_, y) => number(y) };
    });
    const axis = (size) => ({ stroke: ink, grid, ticks: grid, size, values: (_, splits) => splits.map((each) => short.format(each)) });
    const isTime = this.x === "minutes", { unit, meaning } = this.keys[chart] ?? {};
    const figure = h("figure", {}, h("h3", { title: meaning }, chart, unit ? h("span", { class: "soft" }, ` ${unit.replace(/`/g, "")}`) : null));
    const u = new uPlot({ width: this.width(), height: HEIGHT, cursor: { sync: { key: this.x } }, scales: { x: { time: false } },
      axes: [axis(34), axis(60)], series: [{ label: this.x, value: (_, x) => (isTime && x != null ? duration(x * 60) : number(x)) }, ...series] }, data, figure);
    u.root.querySelector("canvas").setAttribute("role", "img");
    for (const entry of [...u.root.querySelectorAll(".u-legend .u-series")].slice(1)) {
      const button = entry.querySelector("th");
      for (const [name, value] of [["tabindex", 0], ["role", "button"], ["aria-label", `show or hide ${entry.textContent}`]]) button.setAttribute(name, value);
      button.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); button.click(); }
      });
    }
    return { u, figure };
  }

  width() {
    const columns = Math.max(1, Math.floor((this.panels.clientWidth + 14) / 444));
    return Math.max(260, (this.panels.clientWidth - 14 * (columns - 1)) / columns - 28);
  }

  resize() {
    for (const { u } of this.plots.values()) if (Math.abs(u.width - this.width()) > 2) u.setSize({ width: this.width(), height: HEIGHT });
  }

  clear() {
    for (const { u, figure } of this.plots.values()) { u.destroy(); figure.remove(); }
    this.plots.clear();
  }
}
