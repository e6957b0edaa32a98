// A table of runs, the newest first, from which some are chosen for a comparison; of those of a sweep the best is marked.

import { address, badge, clock, duration, h, number, plural, show, sparkline, star, table } from "./parts.js";

const COLUMNS = [
  "run", "state", "configuration", "evaluations", "best", "at step", "steps", "samples/s", "began", "took",
];

export class RunTable {
  // Without `isLive` the table has neither links nor a choice.
  constructor(title, isLive = true, isSweep = false) {
    Object.assign(this, { title, isLive, isSweep, rows: new Map(), chosen: new Set(), place: h("div") });
    this.compare = h("button", { type: "button", disabled: true, onclick: () => {
      location.href = address("compare", [...this.chosen].map((run) => ["run", run]));
    } }, "Compare");
    this.count = h("span", { class: "soft", role: "status" });
    this.node = h("div", {}, this.place, h("div", { class: "bar" }, isLive ? this.compare : null, this.count));
  }

  take({ rows, gone }) {
    for (const row of rows) this.rows.set(row.run, row);
    for (const run of gone) {
      this.rows.delete(run);
      this.chosen.delete(run);
    }
    const newest = (a, b) => (b.began_s ?? Infinity) - (a.began_s ?? Infinity) || a.run.localeCompare(b.run);
    const scored = this.isSweep ? [...this.rows.values()].filter(({ score }) => score?.[1] != null) : [];
    const isBetter = (a, b) => (a.is_low ? a.score[1] < b.score[1] : a.score[1] > b.score[1]);
    this.best = scored.reduce((best, row) => (best === null || isBetter(row, best) ? row : best), null)?.run;
    const lines = [...this.rows.values()].sort(newest).map((row) => this.cells(row));
    show(this.place, table(this.title, [COLUMNS, ...lines]));
    this.count.textContent = plural(this.rows.size, "run");
    this.compare.disabled = this.chosen.size < 2;
  }

  cells({ run, state, text, name, model, mode, step, score, metric, spark, is_low, samples_per_s, began_s, last_s }) {
    const onchange = () => {
      if (!this.chosen.delete(run)) this.chosen.add(run);
      this.compare.disabled = this.chosen.size < 2;
    };
    const label = this.isSweep ? run.slice(run.lastIndexOf("/") + 1) : run;
    const marks = { id: `choose ${run}`, "aria-label": `Choose ${run}`, checked: this.chosen.has(run) };
    return [
      this.isLive ? h("span", {}, h("input", { type: "checkbox", ...marks, onchange }), " ",
        h("a", { id: `open ${run}`, href: address("run", { run }) }, label)) : label,
      h("span", { title: text }, badge(state)),
      [name, model, mode].filter(Boolean).join(" · "),
      spark.length > 1 ? sparkline(spark, `${metric} of ${plural(spark.length, "evaluation")}`, is_low) : "–",
      score ? h("span", { "data-key": score[1] ?? "–" }, star(run === this.best), `${metric} ${number(score[1])}`) : "–",
      number(score?.[2]),
      number(step),
      number(samples_per_s),
      clock(began_s),
      began_s == null ? "–" : duration(last_s - began_s),
    ];
  }
}
