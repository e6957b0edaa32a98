// The logs of a run, in which a text is searched.

import { failed, h, number, plural, titled } from "./parts.js";
import { load } from "./server.js";

export class Logs {
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
    this.found.textContent = `${plural(found, "line")}, the last ${number(lines.length)} shown`;
  }
}
