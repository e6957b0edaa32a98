// A picture of points with error bars, as SVG: the frontier of a sweep, and the calibration of a run.

import { COLOURS, number, s } from "./parts.js";

const WIDTH = 720, HEIGHT = 400, LEFT = 76, BOTTOM = 48, TOP = 14, RIGHT = 24;

function ticks(low, high) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high; at++) found.push(at * step);
  return found;
}

function range(values, log) {
  const low = Math.min(...values), high = Math.max(...values);
  if (log) return [Math.log10(low) - 0.1, Math.log10(high) + 0.1];
  const margin = (high - low || Math.abs(high) || 1) * 0.12;
  return [low - margin, high + margin];
}

// groups: lists of points { x, y, dx, dy, text, label, href }; a group is joined with `joined`, and has a colour.
export function scatter(title, xTitle, yTitle, groups, { diagonal = false, log = false, joined = false } = {}) {
  const points = groups.flatMap((group) => group.points);
  // Bars count as far as half the width of all points; longer ones end at the edge.
  const spread = (at, by) => {
    const all = points.map((p) => p[at]), half = (Math.max(...all) - Math.min(...all)) / 2;
    return points.flatMap((p) => [-1, 1].map((side) => p[at] + (log ? 0 : side * Math.min(p[by] || 0, half || Infinity))));
  };
  let across = range(spread("x", "dx"), log), up = range(spread("y", "dy"), log);
  if (diagonal) across = up = [Math.min(across[0], up[0]), Math.max(across[1], up[1])];
  const scale = (value) => (log ? Math.log10(value) : value);
  const within = (value, [low, high]) => Math.min(1, Math.max(0, (scale(value) - low) / (high - low)));
  const X = (x) => LEFT + within(x, across) * (WIDTH - LEFT - RIGHT);
  const Y = (y) => HEIGHT - BOTTOM - within(y, up) * (HEIGHT - TOP - BOTTOM);
  const real = (tick) => (log ? 10 ** tick : tick);
  const picture = s("svg", { class: "scatter", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": title });
  for (const tick of ticks(...across).map(real)) {
    picture.append(s("line", { class: "axis", x1: X(tick), x2: X(tick), y1: TOP, y2: HEIGHT - BOTTOM }),
      s("text", { x: X(tick), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, number(tick)));
  }
  for (const tick of ticks(...up).map(real)) {
    picture.append(s("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: Y(tick), y2: Y(tick) }),
      s("text", { x: LEFT - 7, y: Y(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  picture.append(s("text", { x: (WIDTH + LEFT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, xTitle),
    s("text", { transform: `translate(13 ${HEIGHT / 2}) rotate(-90)`, "text-anchor": "middle" }, yTitle));
  if (diagonal) {
    const ends = across.map(real);
    picture.append(s("line", { class: "rule", x1: X(ends[0]), y1: Y(ends[0]), x2: X(ends[1]), y2: Y(ends[1]) }));
  }
  groups.forEach((group, order) => {
    const colour = `c${(group.colour ?? order) % COLOURS}`;
    if (joined) picture.append(s("polyline", { class: `joined ${colour}`, points: group.points.map((p) => `${X(p.x)},${Y(p.y)}`).join(" ") }));
    for (const p of group.points) {
      const bars = [];
      if (p.dx) bars.push(s("line", { x1: X(p.x - p.dx), x2: X(p.x + p.dx), y1: Y(p.y), y2: Y(p.y) }));
      if (p.dy) bars.push(s("line", { x1: X(p.x), x2: X(p.x), y1: Y(log ? Math.max(p.y - p.dy, 1e-9) : p.y - p.dy), y2: Y(p.y + p.dy) }));
      const spot = s("g", { class: colour }, bars, s("circle", { cx: X(p.x), cy: Y(p.y), r: p.best ? 7 : 4 }), s("title", {}, p.text));
      picture.append(s("g", { role: "img", "aria-label": p.text, tabindex: p.label ? 0 : null }, spot,
        p.label ? s("text", { x: X(p.x) + 10, y: Y(p.y) - 7 }, p.label) : null));
    }
  });
  return picture;
}
