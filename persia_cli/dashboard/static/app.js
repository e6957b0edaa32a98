// The pages: the list, a run, several runs side by side, a sweep.

import { Curves } from "./curves.js";
import { address, badge, clock, duration, follow, h, load, number, table } from "./parts.js";
import { scatter } from "./scatter.js";

const main = document.getElementById("main");
const asked = new URLSearchParams(location.search);

function begin(title, ...nodes) {
  document.title = `${title} – persia`;
  main.replaceChildren(h("h1", {}, title), ...nodes);
}

const alarm = (text) => h("p", { class: "alert", role: "alert" }, text);
const problem = h("div");

function failed({ message, text }) {
  problem.replaceChildren(alarm(message ?? text));
  main.prepend(problem);
}

const titled = (title, ...nodes) => h("section", { "aria-label": title }, h("h2", {}, title), ...nodes);

// A table of runs that can be sorted, filtered and chosen from; rows keep their elements, and so the focus.
class RunTable {
  columns = [
    ["run", "run", (row) => h("a", { href: address("run", { run: row.run }) }, this.labels[row.run] ?? row.run)],
    ["state", "state", (row) => h("span", { title: row.text }, badge(row.state))],
    ["configuration", "name", (row) => [row.name, row.model, row.mode].filter(Boolean).join(" · ")],
    ["step", "step", (row) => number(row.step)],
    ["best evaluation", "score", (row) => (row.best ? `${row.best[0]} ${number(row.best[1])}` : "–")],
    ["at step", "best_step", (row) => number(row.best?.[2])],
    ["samples/s", "samples_per_s", (row) => number(row.samples_per_s)],
    ["began", "began_s", (row) => clock(row.began_s)],
    ["took", "took_s", (row) => duration(row.took_s)],
  ];

  constructor() {
    Object.assign(this, { rows: new Map(), chosen: new Set(), by: "began_s", falling: true, text: "", labels: {} });
    this.compare = h("button", { type: "button", disabled: true, onclick: () => {
      location.href = address("compare", [...this.chosen].map((run) => ["run", run]));
    } }, "Compare");
    this.count = h("span", { class: "soft" });
    const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter runs", oninput: (event) => {
      this.text = event.target.value.toLowerCase();
      this.draw();
    } });
    this.heads = this.columns.map(([title, key]) => h("th", { scope: "col", class: key === "run" ? "left" : "" },
      h("button", { type: "button", onclick: () => this.sort(key) }, title)));
    this.body = h("tbody");
    this.node = h("div", {}, h("div", { class: "bar" }, filter, this.compare, this.count),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, ""), this.heads)), this.body)));
  }

  sort(key) {
    this.falling = this.by === key ? !this.falling : key !== "run";
    this.by = key;
    this.draw();
  }

  take({ rows, gone, unread }) {
    for (const row of rows) {
      [, row.score, row.best_step] = row.best ?? [];
      row.took_s = row.last_s != null && row.began_s != null ? row.last_s - row.began_s : null;
      const kept = this.rows.get(row.run);
      this.rows.set(row.run, { ...row, node: kept?.node ?? this.element(row.run) });
      this.columns.forEach(([, , make], n) => this.rows.get(row.run).node.cells[n + 1].replaceChildren(...this.fresh(kept, row, make, n)));
    }
    for (const run of gone) {
      this.rows.get(run)?.node.remove();
      this.rows.delete(run);
      this.chosen.delete(run);
    }
    this.unread = unread;
    this.draw();
  }

  // The content of a cell; that of the name stays, so that it keeps the focus.
  fresh(kept, row, make, column) {
    return kept && !column ? [...kept.node.cells[1].childNodes] : [make(row)].flat();
  }

  element(run) {
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${run}`, onchange: () => {
      if (!this.chosen.delete(run)) this.chosen.add(run);
      this.compare.disabled = this.chosen.size < 2;
    } });
    return h("tr", {}, h("td", {}, box), this.columns.map(([, key]) => h("td", { class: key === "run" ? "left wide" : "" })));
  }

  draw() {
    const shown = [...this.rows.values()].filter((row) => JSON.stringify({ ...row, node: 0 }).toLowerCase().includes(this.text));
    const value = (row) => row[this.by] ?? (this.falling ? -Infinity : Infinity);
    const compare = (a, b) => (typeof value(a) === "string" || typeof value(b) === "string"
      ? String(value(a)).localeCompare(String(value(b)), "en", { numeric: true }) : value(a) - value(b));
    shown.sort((a, b) => (this.falling ? -1 : 1) * compare(a, b) || a.run.localeCompare(b.run));
    const nodes = shown.map((row) => row.node), now = [...this.body.children];
    if (nodes.length !== now.length || nodes.some((node, n) => node !== now[n])) this.body.replaceChildren(...nodes);
    this.columns.forEach(([, key], n) => this.heads[n].setAttribute("aria-sort", key !== this.by ? "none" : this.falling ? "descending" : "ascending"));
    this.count.textContent = `${shown.length} of ${this.rows.size} runs${this.unread ? `, ${this.unread} being read` : ""}`;
  }
}

function showList() {
  const runs = new RunTable(), sweeps = h("div");
  begin("Runs and sweeps", titled("Runs", runs.node), sweeps);
  follow("rows", {}, { rows(found) {
    document.getElementById("place").textContent = found.folder;
    runs.take(found);
    const rows = found.sweeps.map((each) => [h("a", { href: address("sweep", { sweep: each.sweep }) }, each.sweep), badge(each.state),
      number(each.points), number(each.done), number(each.failed), each.text]);
    sweeps.replaceChildren(...(rows.length ? [titled("Sweeps", table("Sweeps", [["sweep", "state", "points", "done", "failed", "arguments"], ...rows]))] : []));
  } });
}

function reliability({ labels, step }) {
  const groups = Object.entries(labels).map(([label, { predicted, observed, weight }]) => ({ label, points: predicted.map((x, n) => ({
    x, y: observed[n], dy: 2 * Math.sqrt((observed[n] * (1 - observed[n])) / weight[n]),
    text: `${label}: predicted ${number(x)}, observed ${number(observed[n])}` })).filter(({ x, y }) => x > 0 && y > 0) }));
  const seen = groups.flatMap(({ points }) => points.flatMap(({ x, y }) => [x, y]));
  if (!seen.length) return null;
  const log = Math.max(...seen) > 50 * Math.min(...seen);
  return titled("Reliability", h("figure", {}, scatter("Reliability diagram", `predicted probability (step ${number(step)})`, "fraction of positives",
    groups, { diagonal: true, joined: true, log })));
}

function logs(run) {
  const select = h("select", { "aria-label": "Log" }), found = h("span", { class: "soft", role: "status" });
  const text = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in the log" });
  const lines = h("pre", { tabindex: 0, "aria-label": "Lines of the log" });
  async function refresh() {
    const answer = await load("logs", { run, file: select.value || "events.jsonl", text: text.value });
    if (select.length !== answer.files.length) select.replaceChildren(...answer.files.map((file) => h("option", { value: file }, file)));
    const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
    lines.textContent = answer.lines.join("\n");
    if (atEnd) lines.scrollTop = lines.scrollHeight;
    found.textContent = `${number(answer.found)} lines, the last ${answer.lines.length} shown`;
  }
  for (const [node, kind] of [[select, "change"], [text, "input"]]) node.addEventListener(kind, refresh);
  return { node: titled("Logs", h("div", { class: "bar" }, select, text, found), lines), refresh };
}

async function showRun() {
  const run = asked.get("run"), curves = new Curves([run], await load("keys")), log = logs(run);
  const head = h("div"), tables = h("div"), now = h("p", { class: "soft" });
  begin(run, head, now, titled("Curves", curves.node), tables, log.node);
  let state = null, next = performance.now() + 3000, waiting = null;
  async function refresh() {
    waiting = null;
    const begun = performance.now(), found = await load("run", { run });
    head.replaceChildren(h("p", {}, badge(found.state), ` ${found.name} · began ${clock(found.began_s)}`),
      ...(found.text ? [found.state === "running" ? h("p", { class: "soft" }, found.text) : alarm(found.text)] : []),
      h("dl", {}, Object.entries(found.facts ?? {}).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))));
    const open = tables.querySelector("details")?.open;
    tables.replaceChildren(...[found.reliability && reliability(found.reliability),
      ...Object.entries(found.tables ?? {}).map(([title, rows]) => titled(title, table(title, rows))),
      found.notes?.length ? titled("Notes", h("ul", {}, found.notes.map((text) => h("li", {}, text)))) : null,
      titled("Configuration", h("details", { open }, h("summary", {}, "config.yaml"), h("pre", { tabindex: 0, "aria-label": "config.yaml" }, found.config)))].filter(Boolean));
    await log.refresh();
    next = performance.now() + Math.max(3000, 100 * (performance.now() - begun));  // so that training is not slowed
  }
  follow("curves", { run }, {
    curves: (event) => curves.take(event),
    state(row) {
      now.textContent = `Step ${number(row.step)}, ${number(row.samples_per_s)} samples/s`;
      const wait = state && row.state !== state ? 0 : Math.max(0, next - performance.now());
      state = row.state;
      waiting ??= setTimeout(() => refresh().catch(failed), wait);
    },
    gone: failed,
  });
  await refresh();
}

async function showComparison() {
  const runs = [...new Set(asked.getAll("run"))], values = runs.map((run) => ["run", run]);
  const curves = new Curves(runs, await load("keys")), tables = h("div");
  begin("Comparison", titled("Curves", curves.node), tables);
  follow("curves", values, { curves: (event) => curves.take(event), gone: failed });
  const found = await load("compare", values);
  const head = ["", ...found.runs.map((run) => h("a", { href: address("run", { run }) }, run))], copy = () => head.map((each) => each.cloneNode?.(true) ?? each);
  const rows = (lines) => [copy(), ...Object.entries(lines).map(([key, texts]) => [key, ...texts])];
  tables.append(...Object.entries(found.damaged).map(([run, text]) => alarm(`${run}: ${text}`)),
    titled("Settings that differ", Object.keys(found.settings).length ? table("Settings that differ", rows(found.settings)) : h("p", {}, "No setting differs.")),
    titled("Metrics", table("Metrics", rows(found.facts))));
}

function showSweep() {
  const sweep = asked.get("sweep"), runs = new RunTable(), head = h("div");
  begin(sweep, head, titled("Points", runs.node));
  const text = ({ mean, margin }) => number(mean) + (margin == null ? "" : ` ± ${number(margin)}`);
  async function refresh() {
    const found = await load("sweep", { sweep });
    runs.labels = found.labels ?? {};
    for (const [run, label] of Object.entries(runs.labels)) runs.rows.get(run)?.node.cells[1].firstChild.replaceChildren(label);
    const drawn = found.settings.filter(({ speed, quality }) => speed && quality);
    const point = (each) => ({ x: each.speed.mean, dx: each.speed.margin, y: each.quality.mean, dy: each.quality.margin, best: each.is_best,
      label: each.label || each.setting, text: `${each.setting}: ${found.metric} ${text(each.quality)}, ${text(each.speed)} samples/s` });
    const groups = [[true, 0, "on the frontier"], [false, 5, "beaten"]].map(([best, colour]) => ({ colour, points: drawn.filter((each) => each.is_best === best).map(point) }));
    head.replaceChildren(h("p", {}, badge(found.state), ` ${found.text}`),
      ...(drawn.length ? [titled("Frontier", h("p", { class: "soft" }, "Large: no other setting is as fast and as good. Bars: 95 % confidence over seeds."),
        h("figure", {}, scatter("Frontier of quality and speed", "samples/s", found.metric, groups)))] : []),
      ...(found.settings.length ? [titled("Settings", table("Settings", [["setting", "seeds", "failed", found.metric, "samples/s"], ...found.settings.map((each) =>
        [each.setting, number(each.finished), number(each.failed), each.quality ? text(each.quality) : "–", each.speed ? text(each.speed) : "–"])]))] : []));
  }
  let waiting = null;
  follow("rows", { sweep }, { rows(found) {
    runs.take(found);
    waiting ??= setTimeout(() => { waiting = null; refresh().catch(failed); }, 300);
  }, gone: failed });
  return refresh();
}

const pages = { "/": showList, "/run": showRun, "/compare": showComparison, "/sweep": showSweep };
Promise.resolve(pages[location.pathname]()).catch(failed);
