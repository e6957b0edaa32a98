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
const local = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });

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

export const badge = (state) => h("span", { class: `badge ${state}` }, state);
export const address = (page, values) => `${page}?${new URLSearchParams(values)}`;
export const alarm = (text) => h("p", { class: "alert", role: "alert" }, text);
export const soft = (...text) => h("p", { class: "soft" }, text);
export const titled = (title, ...nodes) => h("section", { "aria-label": title }, h("h2", {}, title), nodes);

export function table(title, [head, ...rows]) {
  const line = (tag, cells) => h("tr", {}, cells.map((cell) => h(tag, tag === "th" ? { scope: "col" } : {}, cell)));
  return titled(title, h("div", { class: "scroll", id: title, tabindex: 0, role: "region", "aria-label": title },
    h("table", {}, h("thead", {}, line("th", head)), h("tbody", {}, rows.map((cells) => line("td", cells))))));
}

// A list of values by their names.
export const list = (values, kind) => h("dl", { class: kind },
  Object.entries(values).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

// Shows a page with a title.
export function begin(title, ...nodes) {
  document.title = `${title} – persia`;
  document.getElementById("main").replaceChildren(h("h1", {}, title), h("div", { id: "problem" }), ...nodes);
}

export const failed = (error) => show(document.getElementById("problem"), alarm(error.message ?? error.text));
