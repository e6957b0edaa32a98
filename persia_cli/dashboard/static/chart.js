// A chart by uPlot: lines or points in colours of the page, with a legend that is used by keyboard.

import { h, number } from "./parts.js";

const COLOURS = 8, HEIGHT = 230;
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 5 });
const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const line = { stroke: colour("--line"), width: 1 };

// The range of an axis with room for texts at the right of points.
function wide(_, low, high) {
  const width = high - low || Math.abs(low) || 1;
  return [low - width / 8, high + width / 4];
}

export class Chart {
  // `series`: { label, order, dots, dashes, isAlone } of each; isAlone: points without lines.
  constructor({ title, unit = "", meaning, x, y, series, height = HEIGHT, log = false, sync, marks = [] }) {
    Object.assign(this, { title, x, series, marks });
    this.node = h("figure", {}, h("h3", { title: meaning }, title, h("span", { class: "soft" }, ` ${unit}`)));
    const names = ["", ...series.map(({ order }) => `--series-${order % COLOURS}`)];
    const axis = (label, size) => ({
      label, size, labelSize: 18, labelGap: 0, stroke: colour("--soft"), grid: line, ticks: line,
      values: (_, splits) => splits.map((each) => (each == null ? "" : short.format(each))),
    });
    const distr = log ? 3 : 1, marker = (_, n) => `var(${names[n]})`, value = (_, each) => number(each);
    this.u = new uPlot({
      width: 400, height, cursor: { sync: { key: sync } }, legend: { markers: { stroke: marker, fill: marker } },
      scales: { x: { time: false, distr, range: marks.length && !log ? wide : undefined }, y: { distr } },
      axes: [axis(y && x, 30), axis(y, 56)],
      series: [{ label: x, value }, ...series.map(({ label, dots, dashes, isAlone }, n) => {
        const stroke = colour(names[n + 1]), points = dots ? { show: true, size: dots, fill: stroke } : undefined;
        return { label, stroke, points, value, width: isAlone ? 0 : 1.4, dash: dashes, spanGaps: true };
      })],
      hooks: { draw: [() => this.drawMarks()] },
    }, null, this.node);
    this.node.chart = this.u;
    this.u.root.querySelector("canvas").setAttribute("role", "img");
    for (const entry of [...this.u.root.querySelectorAll(".u-series th")].slice(1)) this.makeButton(entry);
    const resized = new ResizeObserver(([{ contentRect }]) => this.u.setSize({ width: contentRect.width, height }));
    resized.observe(this.node);
  }

  makeButton(entry) {
    const attributes = { tabindex: 0, role: "button", "aria-label": `show or hide ${entry.textContent}` };
    for (const [name, value] of Object.entries(attributes)) entry.setAttribute(name, value);
    entry.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      entry.click();
    });
  }

  // Draws [xs, ys] of each series; a part that was zoomed to stays.
  set(tables) {
    const { min, max } = this.u.scales.x, xs = this.u.data?.[0];
    this.u.setData(uPlot.join(tables), !xs?.length || this.marks.length > 0 || (min === xs[0] && max === xs.at(-1)));
    const last = tables.map(([, ys], n) => `${this.series[n].label} ${number(ys.findLast((y) => y != null))}`);
    this.u.root.querySelector("canvas").setAttribute("aria-label", `${this.title} over ${this.x}: ${last.join(", ")}`);
  }

  // Draws error bars and texts of points: { x, y, dx, dy, text }.
  drawMarks() {
    const { ctx, bbox } = this.u, at = (value, scale) => this.u.valToPos(value, scale, true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = colour("--soft")();
    ctx.textAlign = "left";
    ctx.font = `${12 * devicePixelRatio}px system-ui`;
    ctx.beginPath();
    for (const { x, y, dx = 0, dy = 0, text = "" } of this.marks) {
      ctx.moveTo(at(x - dx, "x"), at(y, "y"));
      ctx.lineTo(at(x + dx, "x"), at(y, "y"));
      ctx.moveTo(at(x, "x"), at(y - dy, "y"));
      ctx.lineTo(at(x, "x"), at(y + dy, "y"));
      ctx.fillText(text, at(x, "x") + 8 * devicePixelRatio, at(y, "y") - 7 * devicePixelRatio);
    }
    ctx.stroke();
    ctx.restore();
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { chart } of document.querySelectorAll("figure")) chart.redraw(false);
});
