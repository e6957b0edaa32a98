// Parts of every page: elements whose texts are never read as HTML, numbers, tables.

export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

// Replaces the content of a node. The element with the focus is found again by its id.
export function show(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement : null, top = focused?.scrollTop;
  node.replaceChildren(...children.flat().filter((child) => child != null));
  const again = focused?.id && document.getElementById(focused.id);
  if (again) {
    again.focus({ preventScroll: true });
    again.scrollTop = top;
  }
}

const whole = new Intl.NumberFormat("en");
const local = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "short" });

export function number(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1000) return whole.format(Math.round(value));
  return size < 0.001 ? value.toExponential(2) : value.toPrecision(4);
}

// A mean with the digits that its margin leaves; without one as `number`.
export function spread(value) {
  if (value?.margin == null || !value.margin) return number(value?.mean);
  const digits = Math.min(Math.max(1 - Math.floor(Math.log10(value.margin)), 0), 12);
  const texts = [value.mean, value.margin].map((each) => each.toLocaleString("en", {
    minimumFractionDigits: digits, maximumFractionDigits: digits,
  }));
  return texts.join(" ± ");
}

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
export const clock = (seconds) => (seconds == null ? "–" : local.format(seconds * 1000));

export function duration(seconds) {
  const [hours, minutes, rest] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  return [hours, ...[minutes, rest].map((each) => String(each).padStart(2, "0"))].join(":");
}

export const star = (isBest) => (isBest ? h("b", { class: "best", title: "the best" }, "★ ") : null);
export const badge = (state) => h("span", { class: `badge ${state}` }, state);
export const address = (page, values) => `${page}?${new URLSearchParams(values)}`;
export const alarm = (text) => h("p", { class: "alert", role: "alert" }, text);
export const soft = (...text) => h("p", { class: "soft" }, text);
export const titled = (title, ...nodes) => h("section", { "aria-label": title }, h("h2", {}, title), nodes);

// The number that a cell shows, or its text; null if it shows neither. `data-key` of a node replaces its text.
function keyOf(cell) {
  const text = String(cell?.dataset?.key ?? cell?.textContent ?? cell ?? "");
  const found = /^(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)( ?%| ± .*)?$/.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) : ["-", "–"].includes(text) || cell === "" ? null : text;
}

// Compares keys: numbers descending, texts ascending, nothing last.
function compare(a, b, isTurned) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? b - a
    : String(a).localeCompare(String(b), "en", { numeric: true });
  return isTurned ? -order : order;
}

const orders = new Map();

// A table whose columns sort its rows; the order of a title stays when the table is shown again.
export function table(title, [head, ...rows]) {
  const keys = rows.map((cells) => cells.map(keyOf)), body = h("tbody");
  const kinds = head.map((_, n) => (keys.some((each) => typeof each[n] === "string") ? "text" : "number"));
  const heads = head.map((name, n) => h("th", { scope: "col", class: kinds[n] }, name && h("button", {
    type: "button", id: `${title} by ${name}`, title: "Sort", onclick: () => {
      const [by, isTurned] = orders.get(title) ?? [];
      orders.set(title, [n, by === n && !isTurned]);
      sort();
    },
  }, name)));
  function sort() {
    const [by, isTurned] = orders.get(title) ?? [], places = rows.map((_, n) => n);
    if (by !== undefined) places.sort((a, b) => compare(keys[a][by], keys[b][by], isTurned));
    for (const [n, each] of heads.entries()) {
      each.ariaSort = n !== by ? "none" : (kinds[n] === "text") !== isTurned ? "ascending" : "descending";
    }
    body.replaceChildren(...places.map((n) => h("tr", {}, rows[n].map((cell, m) => h("td", { class: kinds[m] }, cell)))));
  }
  sort();
  return titled(title, h("div", { class: "scroll", id: title, tabindex: 0, role: "region", "aria-label": title },
    h("table", {}, h("thead", {}, h("tr", {}, heads)), body)));
}

// A drawing of [tag, attributes] each.
export function drawing(attributes, ...parts) {
  const [node, ...children] = [["svg", attributes], ...parts].map(([tag, values]) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
    return made;
  });
  node.append(...children);
  return node;
}

// A line through numbers, of which the best is marked; small enough for a cell.
export function sparkline(values, title, isLow) {
  const [low, high] = [Math.min(...values), Math.max(...values)], width = 96, height = 22, room = 3;
  const at = (value, n) => [
    room + (n / Math.max(1, values.length - 1)) * (width - 2 * room),
    height - room - (high > low ? (value - low) / (high - low) : 0.5) * (height - 2 * room),
  ].map((each) => each.toFixed(1));
  const best = values.indexOf(isLow ? low : high), [cx, cy] = at(values[best], best);
  return drawing({ width, height, role: "img", "aria-label": title, class: "spark" },
    ["polyline", { points: values.map((value, n) => at(value, n).join()).join(" ") }], ["circle", { cx, cy, r: 2.5 }]);
}

// A list of values by their names.
export const list = (values, kind) => h("dl", { class: kind },
  Object.entries(values).map(([name, value]) => h("div", { class: value.length > 14 && "long" }, h("dt", {}, name), h("dd", {}, value))));

// Shows a page with a title.
export function begin(title, ...nodes) {
  document.title = `${title} – persia`;
  document.getElementById("main").replaceChildren(h("h1", {}, title), h("div", { id: "problem" }), ...nodes);
}

export const failed = (error) => show(document.getElementById("problem"), alarm(error.message ?? error.text));
