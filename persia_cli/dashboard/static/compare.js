// The page that compares runs: their curves, the settings in which they differ, and their metrics.

import { Curves } from "./curves.js";
import { address, alarm, begin, failed, h, show, soft, table, titled } from "./parts.js";
import { follow, load } from "./server.js";

export async function showComparison(asked) {
  const runs = [...new Set(asked.getAll("run"))], values = runs.map((run) => ["run", run]);
  const curves = new Curves(runs, await load("panels")), tables = h("div");
  begin("Comparison", titled("Curves", curves.node), tables);
  follow("curves", values, { curves: (event) => curves.take(event), gone: failed });
  const found = await load("compare", values);
  const rows = (lines) => [["", ...found.runs.map((run) => h("a", { href: address("run", { run }) }, run))],
    ...Object.entries(lines).map(([key, texts]) => [key, ...texts])];
  const isDifferent = Object.keys(found.settings).length > 0;
  show(tables, Object.entries(found.damaged).map(([run, text]) => alarm(`${run}: ${text}`)),
    isDifferent ? table("Settings that differ", rows(found.settings)) : soft("No setting differs."),
    table("Metrics", rows(found.facts)));
}
