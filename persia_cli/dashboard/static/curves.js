// Curves of metrics over steps, of one run or several, to which new lines are added.

import { Grid } from "./chart.js";
import { h, soft } from "./parts.js";

const MAX_LINES = 6000, CALM = 5;
const PART = { train: "training", eval: "evaluation" };

export class Curves {
  // `panels`: as of `persia_cli.dashboard.panels`.
  constructor(runs, { panels, scored, meanings }) {
    Object.assign(this, { runs, panels, meanings, scored: new Set(scored), splits: new Map(), begun: {} });
    Object.assign(this, { main: new Grid(), more: new Grid(), text: soft("No log interval of training has ended yet.") });
    this.rest = h("details", { hidden: true, ontoggle: () => this.draw() }, h("summary", {}, "More metrics"), this.more.node);
    this.node = h("div", {}, this.text, this.main.node, this.rest);
  }

  // Adds the lines of an event; with `all` they replace those of the run.
  take({ run, all, splits }) {
    if (all) this.splits.set(run, {});
    const mine = this.splits.get(run);
    for (const [split, columns] of Object.entries(splits)) {
      const old = (mine[split] ??= {}), before = old.step?.length ?? 0, added = columns.step.length;
      if (all || !(run in this.begun)) this.begun[run] = columns.time?.[0];
      for (const key of new Set([...Object.keys(old), ...Object.keys(columns)])) {
        old[key] = (old[key] ?? Array(before).fill(null)).concat(columns[key] ?? Array(added).fill(null));
        if (before + added > MAX_LINES) old[key] = old[key].filter((_, line) => line % 2 || line > MAX_LINES);
      }
    }
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  // The key that a panel names and a key of a line belongs to: its own, or that before a label or a list's length.
  declared(key) {
    const plain = key.replace(/@[0-9]+/, "@K");
    const fitting = Object.keys(this.meanings).filter((each) => `${plain}_`.startsWith(`${each}_`));
    return fitting.sort((a, b) => b.length - a.length)[0];
  }

  // The curves of a panel: { name, hue, run, split, table }.
  curvesOf({ curves, over_time }) {
    const found = [];
    for (const run of this.runs) {
      for (const [split, columns] of Object.entries(this.splits.get(run) ?? {})) {
        const xs = over_time ? columns.time?.map((time) => time - this.begun[run]) : columns.step;
        for (const key of Object.keys(columns)) {
          const plain = this.declared(key), isScored = this.scored.has(plain);
          if (!(plain in curves) || (split !== "train" && !isScored)) continue;
          const label = plain.includes("@") ? key : key.slice(plain.length + 1), part = isScored ? PART[split] ?? split : "";
          found.push({ label: label || curves[plain], part, run, split, table: [xs, columns[key]] });
        }
      }
    }
    const isEmpty = ({ table: [, ys] }) => !ys.some(Boolean);
    return Object.keys(curves).length > 1 && !found.every(isEmpty) ? found.filter((each) => !isEmpty(each)) : found;
  }

  draw() {
    const isOne = this.runs.length === 1;
    for (const [place, panel] of this.panels.entries()) {
      const curves = this.curvesOf(panel);
      if (!curves.length) continue;
      this.rest.hidden &&= panel.is_main;
      if (!panel.is_main && !this.rest.open) continue;
      const hue = ({ run, label, part }) => (isOne ? label || part : run), hues = [...new Set(curves.map(hue))];
      const series = curves.map((each) => ({
        label: [isOne ? "" : each.run, each.label, each.part].filter(Boolean).join(" ") || panel.y,
        order: hues.indexOf(hue(each)),
        ...(each.split === "train" ? {} : { isDashed: true, dots: 5 }),
      }));
      const tables = curves.map(({ table }) => table);
      if (panel.ideal != null) {
        const xs = tables.flatMap(([each]) => [each[0], each.at(-1)]), ends = [Math.min(...xs), Math.max(...xs)];
        series.push({ label: "ideal", order: CALM, isDashed: true });
        tables.push([ends, [panel.ideal, panel.ideal]]);
      }
      const meaning = Object.keys(panel.curves).map((key) => this.meanings[key]).join("; ");
      const isTime = panel.over_time, x = isTime ? "time since training began" : "step", { title, y, from_zero: fromZero } = panel;
      (panel.is_main ? this.main : this.more).put(
        place, { title, meaning, x, y, fromZero, isTime, series, sync: x }, tables,
      );
      this.text.textContent = "Drag to zoom, double-click to see all.";
    }
  }

  // Draws a chart of numbers that are no lines of metrics, at the place of the panel with its title.
  put(options, tables, marks) {
    const place = this.panels.findIndex(({ title }) => title === options.title);
    this.main.put(place, { y: this.panels[place].y, ...options }, tables, marks);
  }
}
