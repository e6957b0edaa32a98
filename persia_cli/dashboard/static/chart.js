// A chart by uPlot: lines, points or bars in colours of the page, with a legend that is used by keyboard.

import { drawing, duration, h, number } from "./parts.js";

const COLOURS = 8, HEIGHT = 230, ROOM = 1 / 12, RING = 5.5;
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 5 });
const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const grid = { stroke: colour("--line"), width: 1 };
// The style of a line says what it is, on every page; `key` is its text in the legend of styles.
const STYLES = {
  train: { key: "training", width: 1.2, alpha: 0.5 },
  eval: { key: "evaluation", width: 2, dots: 5 },
  test: { key: "test", width: 1.6, dash: [8, 5] },
  ideal: { key: "ideal", width: 1.2, dash: [2, 4] },
  plain: { width: 1.5 },
};
const TIMES = [1, 2, 5, 10, 15, 30].flatMap((each) => [each, 60 * each, 3600 * each, 86400 * each]).sort((a, b) => a - b);

// The range of an axis: with room around the numbers, also around a single one, but below 0 only if a number is.
function range(low, high, below, above) {
  const isFlat = high === low, width = isFlat ? Math.abs(high) / 8 || 1 : high - low;
  const least = low - width * (isFlat ? 1 : below);
  return [low >= 0 ? Math.max(0, least) : least, high + width * (isFlat ? 1 : above)];
}

// The legend of styles.
export function styleKey() {
  const line = ({ width, alpha = 1, dash = "", dots }) => drawing(
    { width: 36, height: 10, stroke: "currentColor", fill: "currentColor", "aria-hidden": true },
    ["line", { x1: 0, x2: 36, y1: 5, y2: 5, "stroke-width": width, "stroke-opacity": alpha, "stroke-dasharray": dash }],
    ...(dots ? [6, 30].map((cx) => ["circle", { cx, cy: 5, r: dots / 2 + 0.5 }]) : []),
  );
  const ring = drawing({ width: 14, height: 14, stroke: "currentColor", fill: "none", "aria-hidden": true },
    ["circle", { cx: 7, cy: 7, r: RING, "stroke-width": 1.6 }]);
  const shown = Object.values(STYLES).filter(({ key }) => key).map((style) => h("span", {}, line(style), style.key));
  return h("p", { class: "styles" }, shown, h("span", {}, ring, "best evaluation"));
}

export class Chart {
  // `kind`: "curves"; "points" with room for their texts; "bars"; or "powers", with powers of 2 on the x-axis.
  // `series`: { label, order, style, dots, isAlone } of each; isAlone: points without lines. `names`: the numbers on
  // the x-axis with their texts. `isLog`: both axes are logarithmic. `isTime`: the x-axis has seconds.
  constructor({
    kind = "curves", title, caption = "", x, y, series, names, height = HEIGHT, sync, fromZero = false,
    isLog = false, isTime = false,
  }) {
    Object.assign(this, { kind, title, x, series, marks: [] });
    this.node = h("figure", {}, h("h3", {}, title), h("p", { class: "caption", title: caption }, caption));
    const hues = ["", ...series.map(({ order }) => `--series-${order % COLOURS}`)], text = new Map(names);
    const wide = (_, texts) => 34 + 7 * Math.max(3, ...(texts ?? []).map((each) => each.length));
    const axis = (label, size) => ({
      label, size, labelSize: 18, labelGap: 0, stroke: colour("--soft"), grid, ticks: grid,
      values: (_, splits) => splits.map((each) => (each == null ? "" : short.format(each))),
    });
    const times = { incrs: TIMES, values: (_, splits) => splits.map(duration), space: 70 };
    const named = {
      splits: [...text.keys()], filter: (_, splits) => splits, values: (_, splits) => splits.map((each) => text.get(each)),
    };
    const style = (n) => ({ ...STYLES[series[n - 1]?.style ?? "plain"], ...series[n - 1] });
    const markers = {
      width: (_, n) => (style(n).isAlone ? style(n).dots : style(n).width + 1), fill: "none",
      dash: (_, n) => (style(n).isAlone ? "dotted" : style(n).dash ? "dashed" : "solid"),
      stroke: (_, n) => `color-mix(in srgb, var(${hues[n]}) ${100 * (style(n).alpha ?? 1)}%, transparent)`,
    };
    // Where the pointer is nowhere, the legend has the last values.
    const value = (u, each, n, at) => {
      const found = at == null ? u.data?.[n]?.findLast((every) => every != null) : each;
      return (n === 0 && (text.get(found) ?? (isTime && found != null && duration(found)))) || number(found);
    };
    const across = {
      bars: (_, low, high) => [low - 0.6, high + 0.6],
      points: (_, low, high) => range(...this.withBars(low, high, "x", "dx"), ROOM, 0.2),
      powers: (_, low, high) => [low / 1.3, high * 1.3],
    }[kind];
    const above = kind === "bars" ? 0.2 : ROOM;
    const up = (_, low, high) => range(...this.withBars(fromZero ? 0 : low, high, "y", "dy"), ROOM, above);
    this.u = new uPlot({
      width: 400, height, cursor: { sync: { key: sync } },
      legend: { show: kind !== "bars", live: kind === "curves", markers },
      scales: {
        x: {
          time: false, range: across, distr: isLog || kind === "powers" ? 3 : 1, log: kind === "powers" ? 2 : 10,
        },
        y: isLog ? { distr: 3 } : { range: up },
      },
      axes: [{ ...axis(x, 30), space: 40, ...(names ? named : isTime ? times : {}) }, axis(y, wide)],
      series: [{ label: x, value }, ...series.map(({ label, isAlone }, n) => {
        const stroke = colour(hues[n + 1]), { width, alpha, dash, dots } = style(n + 1);
        const points = dots ? { show: true, size: dots, fill: stroke } : { show: false };
        const bars = kind === "bars" ? { paths: uPlot.paths.bars({ size: [0.7, 90] }), fill: stroke } : {};
        return { label, stroke, points, value, width: isAlone ? 0 : width, alpha, dash, spanGaps: true, ...bars };
      })],
      hooks: { draw: [() => this.drawMarks()] },
    }, null, this.node);
    this.node.chart = this.u;
    this.u.root.querySelector("canvas").setAttribute("role", "img");
    for (const entry of [...this.u.root.querySelectorAll(".u-series th")].slice(1)) this.makeButton(entry);
    const resized = new ResizeObserver(([{ contentRect: { width } }]) => width && this.u.setSize({ width, height }));
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

  // Draws [xs, ys] of each series, and `marks`; a part of curves that was zoomed to stays.
  set(tables, marks = []) {
    const { min, max } = this.u.scales.x, xs = this.u.data?.[0] ?? [];
    const isWhole = this.kind !== "curves" || xs.length < 2 || (min === xs[0] && max === xs.at(-1));
    this.marks = marks;
    this.u.setData(uPlot.join(tables), isWhole);
    const last = tables.map(([, ys], n) => `${this.series[n].label} ${number(ys.findLast((y) => y != null))}`);
    this.u.root.querySelector("canvas").setAttribute("aria-label", `${this.title} over ${this.x}: ${last.join(", ")}`);
  }

  // The range of numbers and error bars on an axis.
  withBars(low, high, axis, error) {
    const ends = this.marks.flatMap((mark) => [mark[axis] - (mark[error] ?? 0), mark[axis] + (mark[error] ?? 0)]);
    return ends.length ? [Math.min(low, ...ends), Math.max(high, ...ends)] : [low, high];
  }

  // Draws error bars, rings and texts of points: { x, y, dx, dy, text, isMiddle, isBest }.
  drawMarks() {
    const { ctx, bbox } = this.u, at = (value, scale) => this.u.valToPos(value, scale, true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = colour("--soft")();
    ctx.setLineDash([]);
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.beginPath();
    for (const { x, y, dx = 0, dy = 0 } of this.marks) {
      ctx.moveTo(at(x - dx, "x"), at(y, "y"));
      ctx.lineTo(at(x + dx, "x"), at(y, "y"));
      ctx.moveTo(at(x, "x"), at(y - dy, "y"));
      ctx.lineTo(at(x, "x"), at(y + dy, "y"));
    }
    ctx.stroke();
    ctx.strokeStyle = ctx.fillStyle = colour("--ink")();
    ctx.lineWidth = 1.6 * devicePixelRatio;
    for (const { x, y } of this.marks.filter(({ isBest }) => isBest)) {
      ctx.beginPath();
      ctx.arc(at(x, "x"), at(y, "y"), RING * devicePixelRatio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    this.drawTexts();
    ctx.restore();
  }

  // Writes the texts of points, each where it covers no other, no point and no error bar, if there is such a place, and
  // the fewest lines.
  drawTexts() {
    const { ctx, bbox } = this.u, em = 12 * devicePixelRatio, gap = 8 * devicePixelRatio;
    const at = (x, y) => [this.u.valToPos(x, "x", true), this.u.valToPos(y, "y", true)];
    const places = this.marks.map(({ x, y }) => at(x, y));
    const taken = this.marks.flatMap(({ x, y, dx = 0, dy = 0 }, n) => [
      [places[n][0] - gap / 2, places[n][1] - gap / 2, places[n][0] + gap / 2, places[n][1] + gap / 2],
      [...at(x - dx, y), ...at(x + dx, y)], [...at(x, y + dy), ...at(x, y - dy)],
    ]);
    for (const [n, { text, isMiddle }] of this.marks.entries()) {
      if (!text) continue;
      const [x, y] = places[n], width = ctx.measureText(text).width, left = x - gap - width;
      const middle = Math.max(bbox.left, Math.min(x - width / 2, bbox.left + bbox.width - width));
      const corners = isMiddle ? [[middle, y - gap]] : [
        [x + gap, y - gap], [x + gap, y + gap + em], [left, y - gap], [left, y + gap + em],
        [middle, y - 2 * gap], [middle, y + 2 * gap + em],
      ];
      const boxes = corners.map(([a, b]) => [a, b - em, a + width, b]);
      const isFree = ([a, b, c, d]) => a >= bbox.left && c <= bbox.left + bbox.width && b >= bbox.top
        && d <= bbox.top + bbox.height && !taken.some(([e, f, g, i]) => a < g && e < c && b < i && f < d);
      const free = boxes.filter(isFree), counts = free.map((each) => this.crossings(each));
      if (!free.length) continue;
      const box = free[counts.indexOf(Math.min(...counts))];
      taken.push(box);
      ctx.strokeStyle = colour("--card")();
      ctx.lineWidth = 4 * devicePixelRatio;
      ctx.strokeText(text, box[0], box[3]);
      ctx.fillText(text, box[0], box[3]);
    }
  }
  // The number of lines between two points that lie in a box of pixels at least partly, as rectangles.
  crossings([left, top, right, bottom]) {
    const [from, to] = [left, right].map((each) => this.u.posToVal(each, "x", true));
    const [low, high] = [bottom, top].map((each) => this.u.posToVal(each, "y", true));
    const [xs, ...lines] = this.u.data;
    let count = 0;
    for (const ys of lines) {
      let before = -1;
      for (const [n, y] of ys.entries()) {
        if (y == null) continue;
        const last = before < 0 ? n : before;
        if (xs[last] < to && xs[n] > from && Math.min(y, ys[last]) < high && Math.max(y, ys[last]) > low) count += 1;
        before = n;
      }
    }
    return count;
  }
}

// Charts in a grid, each at its number; one is made again only when it shows something else than before.
export class Grid {
  constructor() {
    Object.assign(this, { charts: new Map(), node: h("div", { class: "panels" }) });
  }

  put(place, options, tables, marks) {
    const before = this.charts.get(place), kind = JSON.stringify(options);
    if (before?.kind !== kind) {
      const chart = new Chart(options), after = Math.min(...[...this.charts.keys()].filter((each) => each > place));
      this.node.insertBefore(chart.node, this.charts.get(after)?.chart.node ?? null);
      before?.chart.node.remove();
      before?.chart.u.destroy();
      this.charts.set(place, { kind, chart });
    }
    this.charts.get(place).chart.set(tables, marks);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { chart } of document.querySelectorAll("figure")) chart.redraw(false);
});
