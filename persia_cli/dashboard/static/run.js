// The page of a run: metrics, charts, tables and configuration.

import { Curves } from "./curves.js";
import { alarm, badge, begin, clock, duration, h, list, number, show, soft, table, titled } from "./parts.js";

function reliability({ labels, step }) {
  const names = Object.keys(labels);
  const points = names.map((label) => {
    const { predicted, observed, weight } = labels[label];
    const error = (y, n) => Math.min(0.9 * y, 2 * Math.sqrt((y * (1 - y)) / weight[n]));
    const found = predicted.map((x, n) => ({ x, y: observed[n], dy: error(observed[n], n) }));
    return found.filter(({ x, y }) => x > 0 && y > 0);
  });
  const marks = points.flat(), all = marks.flatMap(({ x, y }) => [x, y]);
  if (!all.length) return null;
  const ends = [Math.min(...all), Math.max(...all)];
  const series = names.map((label, order) => ({ label, order, style: "eval" }));
  const options = {
    title: "Reliability", caption: `evaluation at step ${number(step)}; bars: 95 % confidence`,
    x: "predicted probability", series: [...series, { label: "ideal", order: 5, style: "ideal" }],
    isLog: ends[1] > 50 * ends[0],
  };
  const tables = points.map((each) => [each.map(({ x }) => x), each.map(({ y }) => y)]);
  return [options, [...tables, [ends, ends]], marks];
}

function staleness({ shares, bound, mean }) {
  const percents = Object.values(shares), xs = percents.map((_, n) => n);
  const options = {
    kind: "bars", title: "Staleness of rows", x: "steps", series: [{ label: "% of steps", order: 0 }],
    caption: bound ? `at most ${bound}, mean ${Number(mean.toPrecision(3))}` : "always the newest rows", fromZero: true,
    names: Object.keys(shares).map((name, n) => [n, name]),
  };
  const marks = percents.map((y, x) => ({ x, y, text: `${Number(y.toPrecision(3))} %`, isMiddle: true }));
  return [options, [[xs, percents]], marks];
}

export class RunPage {
  constructor(run, panels, ...more) {
    Object.assign(this, { curves: new Curves([run], panels), head: h("div"), now: soft(), tables: h("div"), summary: h("div") });
    this.config = h("pre", { tabindex: 0, "aria-label": "config.yaml" });
    begin(run, this.head, this.now, titled("Training", this.curves.node), this.tables,
      titled("Configuration", this.summary, h("details", {}, h("summary", {}, "config.yaml"), this.config)), ...more);
  }

  // Shows the details of the run, as of `persia_cli.dashboard.details`.
  show({ state, name, text, began_s, last_s, facts = {}, tables = {}, notes = [], summary = {}, config, ...found }) {
    const when = began_s == null ? "training has not begun"
      : `began ${clock(began_s)}, recorded for ${duration(last_s - began_s)}`;
    show(this.head, h("p", {}, badge(state), ` ${name} · ${when}`),
      text ? (state === "running" ? soft : alarm)(text) : null, list(facts, "facts"));
    const charts = [found.reliability && reliability(found.reliability), found.staleness && staleness(found.staleness)];
    for (const chart of charts) if (chart) this.curves.put(...chart);
    show(this.tables, Object.entries(tables).map(([title, rows]) => table(title, rows)),
      notes.length ? titled("Notes", h("ul", {}, notes.map((note) => h("li", {}, note)))) : null);
    show(this.summary, list(summary, "summary"));
    this.config.textContent = config;
  }
}
