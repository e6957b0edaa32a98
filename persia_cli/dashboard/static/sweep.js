// The page of a sweep: its frontier of quality and speed, its settings, and its points.

import { Chart } from "./chart.js";
import { badge, begin, failed, h, number, show, soft, table } from "./parts.js";
import { RunTable } from "./runs.js";
import { follow, load, paced } from "./server.js";

function frontier(settings, metric) {
  const drawn = settings.filter(({ speed, quality }) => speed && quality);
  if (!drawn.length) return null;
  const marks = drawn.map(({ speed, quality, label, setting }) => ({
    x: speed.mean, dx: speed.margin ?? 0, y: quality.mean, dy: quality.margin ?? 0, text: label || setting,
  }));
  const chart = new Chart({
    title: "Frontier", unit: "no other setting is as fast and as good; bars: 95 % confidence over seeds",
    x: "samples/s", y: metric, height: 400, marks,
    series: [
      { label: "on the frontier", order: 0, dots: 12, isAlone: true },
      { label: "others", order: 5, dots: 7, isAlone: true },
    ],
  });
  const parts = [true, false].map((isBest) => marks.filter((_, n) => drawn[n].is_best === isBest));
  chart.set(parts.map((part) => [part.map(({ x }) => x), part.map(({ y }) => y)]));
  return chart.node;
}

const HEAD = ["setting", "seeds", "failed"];
const text = (value) => number(value?.mean) + (value?.margin == null ? "" : ` ± ${number(value.margin)}`);

export function showSweep(asked) {
  const sweep = asked.get("sweep"), points = new RunTable("Points"), head = h("div");
  begin(sweep, head, points.node);
  const cells = ({ setting, finished, failed, quality, speed }) =>
    [setting, number(finished), number(failed), text(quality), text(speed)];
  async function refresh() {
    const found = await load("sweep", { sweep });
    show(head, h("p", {}, badge(found.state), ` ${found.text}`), frontier(found.settings, found.metric),
      table("Settings", [[...HEAD, found.metric ?? "", "samples/s"], ...found.settings.map(cells)]));
  }
  const soon = paced(refresh, failed);
  follow("rows", [["sweep", sweep]], { rows(found) { points.take(found); soon(); }, gone: failed });
}
