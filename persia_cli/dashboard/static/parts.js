// Parts of every page: elements whose texts are never read as HTML, numbers, tables, and the stream of events.

export const COLOURS = 8;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const whole = new Intl.NumberFormat("en"), local = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });

export function number(value) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return whole.format(value);
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(Math.round(value));
  return size && size < 0.001 ? value.toExponential(2) : value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
}

export const clock = (seconds) => (seconds == null ? "–" : local.format(seconds * 1000));

export function duration(seconds) {
  if (seconds == null) return "–";
  const [hours, minutes, rest] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  return `${hours}:${String(minutes).padStart(2, "0")}:${String(rest).padStart(2, "0")}`;
}

export const badge = (state) => h("span", { class: `badge ${state}` }, state);
export const address = (page, values) => `/${page}?${new URLSearchParams(values)}`;

export function table(caption, rows) {
  const [head, ...others] = rows;
  const cell = (tag, text, column) =>
    h(tag, { class: column ? "" : "left wide", scope: tag === "th" ? "col" : null }, text);
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("thead", {}, h("tr", {}, head.map((text, n) => cell("th", text, n)))),
      h("tbody", {}, others.map((row) => h("tr", {}, row.map((text, n) => cell("td", text, n)))))));
}

export async function load(path, values = {}) {
  const answer = await fetch(`/api/${path}?${new URLSearchParams(values)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

// Calls handlers[kind] for each event. A hidden page has no stream; when it is shown again, the stream goes on after
// the last event. The handler `gone` ends it.
export function follow(path, values, handlers) {
  const link = document.getElementById("link");
  let source = null, last = "", ended = false;
  function close(text) {
    source?.close();
    source = null;
    link.textContent = text;
  }
  function open() {
    if (source || ended || document.hidden) return;
    const query = new URLSearchParams(values);
    if (last) query.set("since", last);
    source = new EventSource(`/api/${path}?${query}`);
    source.onopen = () => { link.textContent = "live"; };
    source.onerror = () => {
      link.textContent = "not connected";
      if (source?.readyState === EventSource.CLOSED) { close("not connected"); setTimeout(open, 3000); }
    };
    for (const [kind, take] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        if (kind === "gone") { ended = true; close("ended"); }
        take(JSON.parse(event.data));
      });
    }
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close("paused") : open()));
  open();
}
