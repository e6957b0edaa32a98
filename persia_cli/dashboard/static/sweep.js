// The page of a sweep: its frontier of quality and speed, both against staleness, its settings, and its points.

import { Grid } from "./chart.js";
import { badge, begin, h, number, plural, show, soft, spread, star, table } from "./parts.js";

const BARE = 5;
const mark = ({ speed, quality, label, setting }) => ({
  x: speed.mean, dx: speed.margin ?? 0, y: quality.mean, dy: quality.margin ?? 0, text: label || setting,
});

// The chart of settings; a line joins those on the frontier.
function frontier(drawn, metric, bars) {
  const parts = [true, false].map((isBest) => drawn.filter(({ is_best }) => is_best === isBest).map(mark));
  if (!parts[1].length) parts.pop();
  const options = {
    kind: "points", title: "Quality and speed", caption: `frontier: no other setting is as fast and as good; ${bars}`,
    x: "training speed (samples/s)", y: metric, height: 400,
    series: [
      { label: "on the frontier", order: 0, dots: 11 },
      { label: "others", order: BARE, dots: 7, isAlone: true },
    ].slice(0, parts.length),
  };
  return [options, parts.map((part) => [part.map(({ x }) => x), part.map(({ y }) => y)]), parts.flat()];
}

// The chart of one mean by the bound on staleness: a line for settings that otherwise are equal.
function byStaleness(drawn, key, title, y, bars) {
  const bounded = drawn.filter(({ staleness }) => staleness).sort((a, b) => a.staleness - b.staleness);
  const lines = [...new Set(bounded.map(({ others }) => others))];
  const tables = lines.map((each) => bounded.filter(({ others }) => others === each));
  const options = {
    kind: "powers", title, caption: bars, x: "bound on staleness (steps)", y, height: 300,
    names: [...new Set(bounded.map(({ staleness }) => staleness))].map((each) => [each, number(each)]),
    series: lines.map((label, order) => ({ label: label || y, order, dots: 7 })),
  };
  const marks = bounded.map((each) => ({ x: each.staleness, y: each[key].mean, dy: each[key].margin ?? 0 }));
  return [options, tables.map((each) => [each.map(({ staleness }) => staleness), each.map((one) => one[key].mean)]), marks];
}

export class SweepPage {
  constructor(sweep, points) {
    Object.assign(this, { head: h("div"), main: new Grid(), both: new Grid(), settings: h("div") });
    this.main.node.classList.add("wide");
    begin(sweep, this.head, this.main.node, this.both.node, this.settings, points);
  }

  // Shows the details of the sweep, as of `persia_cli.dashboard.sweep`.
  show({ state, text, metric, settings }) {
    const drawn = settings.filter(({ speed, quality }) => speed && quality);
    const seeds = Math.max(...drawn.map(({ finished }) => finished));
    const bars = seeds > 1 ? `bars: 95 % confidence over ${plural(seeds, "seed")}` : "one seed each, so without confidence";
    show(this.head, h("p", {}, badge(state), ` ${text}`),
      drawn.length ? null : soft(`No setting has both a speed and ${metric ?? "a metric"} yet.`));
    if (drawn.length) this.main.put(0, ...frontier(drawn, metric, bars));
    if (new Set(drawn.map(({ staleness }) => staleness).filter(Boolean)).size > 1) {
      this.both.put(0, ...byStaleness(drawn, "quality", "Quality against staleness", metric, bars));
      this.both.put(1, ...byStaleness(drawn, "speed", "Speed against staleness", "samples/s", bars));
    }
    const cells = ({ setting, is_best, is_top, finished, failed, quality, speed }) => [
      setting, is_best ? "yes" : "", number(finished), number(failed),
      h("span", { "data-key": quality?.mean ?? "–" }, star(is_top), spread(quality)), spread(speed),
    ];
    const head = ["setting", "frontier", "seeds", "failed", metric ?? "", "samples/s"];
    show(this.settings, table("Settings", [head, ...settings.map(cells)]));
  }
}
