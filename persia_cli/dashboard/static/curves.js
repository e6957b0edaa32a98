// Curves of metrics over steps, of one run or several, to which new lines are added.

import { Grid, styleKey } from "./chart.js";
import { h, number, soft } from "./parts.js";

const MAX_LINES = 6000, IDEAL = 5, LARGE = 320, SMALL = 200;
const PART = { train: "training", eval: "evaluation" };

export class Curves {
  // `groups`, `scored`, `marked`, `meanings`: as of `persia_cli.dashboard.panels`.
  constructor(runs, { groups, scored, marked, meanings }) {
    Object.assign(this, { runs, marked, meanings, scored: new Set(scored), splits: new Map(), begun: {}, known: {} });
    this.text = soft("No log interval of training has ended yet.");
    this.groups = Object.entries(groups).map(([title, panels]) => {
      const grid = new Grid();
      grid.node.classList.toggle("large", !title);
      const node = title ? h("details", { hidden: true, open: true }, h("summary", {}, title), grid.node) : grid.node;
      return { panels, grid, node, height: title ? SMALL : LARGE };
    });
    this.node = h("div", {}, styleKey(), this.text, this.groups.map(({ node }) => node));
  }

  // Adds the lines of an event; with `all` they replace those of the run.
  take({ run, all, splits }) {
    if (all) this.splits.set(run, {});
    if (all || !(run in this.begun)) this.begun[run] = Math.min(...Object.values(splits).flatMap(({ time }) => time?.[0] ?? []));
    const mine = this.splits.get(run);
    for (const [split, columns] of Object.entries(splits)) {
      const old = (mine[split] ??= {}), before = old.step?.length ?? 0, added = columns.step.length;
      for (const key of new Set([...Object.keys(old), ...Object.keys(columns)])) {
        old[key] = (old[key] ?? Array(before).fill(null)).concat(columns[key] ?? Array(added).fill(null));
        if (before + added > MAX_LINES) old[key] = old[key].filter((_, line) => line % 2 || line > MAX_LINES);
      }
    }
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  // The key that a panel names and a key of a line belongs to: its own, or that before a label or a list's length.
  declared(key) {
    if (!(key in this.known)) {
      const plain = key.replace(/@[0-9]+/, "@K");
      const fitting = Object.keys(this.meanings).filter((each) => `${plain}_`.startsWith(`${each}_`));
      this.known[key] = fitting.sort((a, b) => b.length - a.length)[0];
    }
    return this.known[key];
  }

  // The curves of a panel: { label, plain, part, run, split, table }. A test has one step, and a line at its value.
  curvesOf({ curves, over_time }) {
    const found = [];
    for (const run of this.runs) {
      const splits = this.splits.get(run) ?? {}, steps = Object.values(splits).flatMap(({ step }) => [step[0], step.at(-1)]);
      for (const [split, columns] of Object.entries(splits)) {
        const xs = over_time ? columns.time?.map((time) => time - this.begun[run]) : columns.step;
        for (const key of Object.keys(columns)) {
          const plain = this.declared(key), isScored = this.scored.has(plain);
          if (!(plain in curves) || (split !== "train" && !isScored)) continue;
          const label = plain.includes("@") ? key : key.slice(plain.length + 1), part = isScored ? PART[split] ?? split : "";
          const level = columns[key].at(-1), ends = [Math.min(...steps), Math.max(...steps)];
          const table = split === "test" ? [ends, [level, level]] : [xs, columns[key]];
          found.push({ label: label || curves[plain], plain, part, run, split, table });
        }
      }
    }
    const isEmpty = ({ table: [, ys] }) => !ys.some(Boolean);
    return Object.keys(curves).length > 1 && !found.every(isEmpty) ? found.filter((each) => !isEmpty(each)) : found;
  }

  // Marks of the best evaluations, over all runs, one for each label.
  best(curves) {
    const found = new Map();
    for (const { label, plain, split, table: [xs, ys] } of curves) {
      if (split !== "eval" || !(plain in this.marked)) continue;
      for (const [n, y] of ys.entries()) {
        const known = found.get(label)?.y;
        const isBetter = known === undefined || (this.marked[plain] === "high" ? y > known : y < known);
        if (y != null && isBetter) found.set(label, { x: xs[n], y, text: number(y), isBest: true });
      }
    }
    return [...found.values()];
  }

  draw() {
    for (const { panels, grid, node, height } of this.groups) {
      for (const [place, panel] of panels.entries()) {
        const curves = this.curvesOf(panel);
        if (!curves.length) continue;
        node.hidden = false;
        grid.put(place, { height, ...this.options(panel, curves) }, ...this.drawn(panel, curves));
        this.text.textContent = "Drag to zoom, double-click to see all.";
      }
    }
  }

  // A colour is a run or, of a single one, a label; a style is a split.
  options(panel, curves) {
    const isOne = this.runs.length === 1, hue = ({ run, label }) => (isOne ? label : run);
    const hues = [...new Set(curves.map(hue))];
    const series = curves.map((each) => ({
      label: [isOne ? "" : each.run, each.label, each.part].filter(Boolean).join(" ") || panel.y,
      order: hues.indexOf(hue(each)), style: each.part ? each.split : "plain",
    }));
    if (panel.ideal != null) series.push({ label: "ideal", order: IDEAL, style: "ideal" });
    const { title, y, from_zero: fromZero, over_time: isTime } = panel, x = isTime ? "time since training began" : "step";
    const caption = [...new Set(curves.map(({ plain }) => this.meanings[plain]))].join("; ");
    return { title, caption, x, y, fromZero, isTime, series, sync: x };
  }

  drawn({ ideal }, curves) {
    const tables = curves.map(({ table }) => table);
    if (ideal != null) {
      const xs = tables.flatMap(([each]) => [each[0], each.at(-1)]);
      tables.push([[Math.min(...xs), Math.max(...xs)], [ideal, ideal]]);
    }
    return [tables, this.best(curves)];
  }

  // Draws a chart of numbers that are no lines of metrics, at the place of the panel with its title.
  put(options, tables, marks) {
    for (const { panels, grid, node, height } of this.groups) {
      const place = panels.findIndex(({ title }) => title === options.title);
      if (place < 0) continue;
      node.hidden = false;
      grid.put(place, { y: panels[place].y, height, ...options }, tables, marks);
    }
  }
}
