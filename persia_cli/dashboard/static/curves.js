// Curves of metrics over steps, of one run or several, to which new lines are added.

import { Chart } from "./chart.js";
import { h } from "./parts.js";

const MAX_ROWS = 6000;
const PLACE = new Set(["time", "step", "samples", "eval_samples"]);
const PART = { train: "training", eval: "evaluation" };

export class Curves {
  constructor(runs, keys) {
    Object.assign(this, { runs, keys, charts: new Map(), splits: new Map() });
    this.panels = h("div", { class: "panels" });
    this.node = h("div", {}, h("p", { class: "soft" }, "Drag to zoom, double-click to see all."), this.panels);
  }

  // Adds the lines of an event; with `all` they replace those of the run.
  take({ run, all, splits }) {
    if (all) this.splits.set(run, {});
    const mine = this.splits.get(run);
    for (const [split, columns] of Object.entries(splits)) {
      const old = (mine[split] ??= {}), before = old.step?.length ?? 0, added = columns.step.length;
      for (const key of new Set([...Object.keys(old), ...Object.keys(columns)])) {
        old[key] = (old[key] ?? Array(before).fill(null)).concat(columns[key] ?? Array(added).fill(null));
        if (before + added > MAX_ROWS) old[key] = old[key].filter((_, row) => row % 2 || row > MAX_ROWS);
      }
    }
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  // The declared key that a key of a line belongs to: its own, or that before a label's name or a list's length.
  declared(key) {
    const plain = key.replace(/@[0-9]+/, "@K");
    const fitting = Object.keys(this.keys).filter((each) => `${plain}_`.startsWith(`${each}_`));
    return fitting.sort((a, b) => b.length - a.length)[0] ?? plain;
  }

  // Returns the curves of each chart, in the order of the declared keys.
  found() {
    const charts = Object.fromEntries(Object.keys(this.keys).map((key) => [key, []]));
    for (const run of this.runs) {
      for (const [split, columns] of Object.entries(this.splits.get(run) ?? {})) {
        for (const key of Object.keys(columns)) {
          const title = this.declared(key);
          if (PLACE.has(key) || (split !== "train" && !this.keys[title]?.scored)) continue;
          (charts[title] ??= []).push({ run, split, key, table: [columns.step, columns[key]] });
        }
      }
    }
    return Object.entries(charts).filter(([, curves]) => curves.length);
  }

  draw() {
    for (const [title, curves] of this.found()) {
      const isOne = this.runs.length === 1, kinds = [...new Set(curves.map(({ key, split }) => key + split))];
      const series = curves.map(({ run, split, key }) => ({
        label: `${isOne ? "" : `${run} `}${key} ${PART[split] ?? split}`,
        order: isOne ? kinds.indexOf(key + split) : this.runs.indexOf(run),
        ...(split === "train" ? {} : { dashes: [5, 4], dots: 5 }),
      }));
      const before = this.charts.get(title);
      if (JSON.stringify(before?.series) !== JSON.stringify(series)) {
        const { unit, meaning } = this.keys[title] ?? {};
        const plain = unit?.replaceAll("`", "");
        this.charts.set(title, new Chart({ title, unit: plain, meaning, x: "step", series, sync: "curves" }));
        if (before) before.node.replaceWith(this.charts.get(title).node);
        else this.panels.append(this.charts.get(title).node);
        before?.u.destroy();
      }
      this.charts.get(title).set(curves.map(({ table }) => table));
    }
  }
}
