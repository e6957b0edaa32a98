// The page of a run: curves, reliability, tables, configuration and logs.

import { Chart } from "./chart.js";
import { Curves } from "./curves.js";
import { alarm, badge, begin, clock, failed, h, number, show, soft, table, titled } from "./parts.js";
import { follow, load, paced } from "./server.js";

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
  const series = names.map((label, order) => ({ label, order, dots: 7 }));
  const chart = new Chart({
    title: "Reliability diagram", unit: `bars: 95 % confidence; step ${number(step)}`, x: "predicted probability",
    y: "fraction of positives", series: [...series, { label: "calibrated", order: 5, dashes: [5, 4] }], height: 360,
    log: ends[1] > 50 * ends[0], marks,
  });
  chart.set([...points.map((each) => [each.map(({ x }) => x), each.map(({ y }) => y)]), [ends, ends]]);
  return chart.node;
}

class Logs {
  constructor(run) {
    const refresh = () => this.refresh().catch(failed);
    this.run = run;
    this.file = h("select", { "aria-label": "Log", onchange: refresh });
    this.text = h("input", { type: "search", "aria-label": "Search in the log", placeholder: "Search", oninput: refresh });
    this.found = h("span", { class: "soft", role: "status" });
    this.lines = h("pre", { tabindex: 0, "aria-label": "Lines of the log" });
    this.node = titled("Logs", h("div", { class: "bar" }, this.file, this.text, this.found), this.lines);
  }

  async refresh() {
    const asked = { run: this.run, file: this.file.value || "events.jsonl", text: this.text.value };
    const { files, lines, found } = await load("logs", asked);
    if (asked.text !== this.text.value) return;  // typed meanwhile
    const option = (value) => h("option", { value, selected: value === asked.file }, value);
    if (this.file.length !== files.length) this.file.replaceChildren(...files.map(option));
    const isAtEnd = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 4;
    this.lines.textContent = lines.join("\n");
    if (isAtEnd) this.lines.scrollTop = this.lines.scrollHeight;
    this.found.textContent = `${number(found)} lines, the last ${lines.length} shown`;
  }
}

export async function showRun(asked) {
  const run = asked.get("run"), curves = new Curves([run], await load("keys")), logs = new Logs(run);
  const head = h("div"), now = soft(), tables = h("div");
  const config = h("pre", { tabindex: 0, "aria-label": "config.yaml" });
  begin(run, head, now, titled("Curves", curves.node), tables,
    titled("Configuration", h("details", {}, h("summary", {}, "config.yaml"), config)), logs.node);
  const fact = ([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value));
  async function refresh() {
    const found = await load("run", { run });
    show(head, h("p", {}, badge(found.state), ` ${found.name} · began ${clock(found.began_s)}`),
      found.text ? (found.state === "running" ? soft : alarm)(found.text) : null,
      h("dl", {}, Object.entries(found.facts ?? {}).map(fact)));
    show(tables, found.reliability ? reliability(found.reliability) : null,
      Object.entries(found.tables ?? {}).map(([title, rows]) => table(title, rows)),
      found.notes?.length ? titled("Notes", h("ul", {}, found.notes.map((text) => h("li", {}, text)))) : null);
    config.textContent = found.config;
    await logs.refresh();
  }
  const soon = paced(refresh, failed);
  follow("curves", [["run", run]], {
    curves: (event) => curves.take(event),
    state({ step, samples_per_s }) {
      show(now, `Step ${number(step)}, ${number(samples_per_s)} samples/s`);
      soon();
    },
    gone: failed,
  });
}
