// A table of runs, the newest first, from which some are chosen for a comparison.

import { address, badge, clock, duration, h, number, plural, show, table } from "./parts.js";

const COLUMNS = ["run", "state", "configuration", "step", "evaluation", "at step", "samples/s", "began", "took"];

export class RunTable {
  // Without `isLive` the table has neither links nor a choice.
  constructor(title, isLive = true) {
    Object.assign(this, { title, isLive, rows: new Map(), chosen: new Set(), place: h("div") });
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
    const lines = [...this.rows.values()].sort(newest).map((row) => this.cells(row));
    show(this.place, table(this.title, [COLUMNS, ...lines]));
    this.count.textContent = plural(this.rows.size, "run");
    this.compare.disabled = this.chosen.size < 2;
  }

  cells({ run, state, text, name, model, mode, step, score, samples_per_s, began_s, last_s }) {
    const onchange = () => {
      if (!this.chosen.delete(run)) this.chosen.add(run);
      this.compare.disabled = this.chosen.size < 2;
    };
    const marks = { id: `choose ${run}`, "aria-label": `Choose ${run}`, checked: this.chosen.has(run) };
    return [
      this.isLive ? [h("input", { type: "checkbox", ...marks, onchange }), " ",
        h("a", { id: `open ${run}`, href: address("run", { run }) }, run)] : run,
      h("span", { title: text }, badge(state)),
      [name, model, mode].filter(Boolean).join(" · "),
      number(step),
      score ? `${score[0]} ${number(score[1])}` : "–",
      number(score?.[2]),
      number(samples_per_s),
      clock(began_s),
      began_s == null ? "–" : duration(last_s - began_s),
    ];
  }
}
