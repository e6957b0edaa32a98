// A page as one file, which has its data in it: of a run, or of a sweep.

import { soft } from "./parts.js";
import { RunPage } from "./run.js";
import { RunTable } from "./runs.js";
import { SweepPage } from "./sweep.js";

const data = JSON.parse(document.getElementById("data").textContent);
if (data.run) {
  const page = new RunPage(data.title, data.panels);
  page.show(data.run);
  page.curves.take({ run: data.title, all: true, splits: data.curves });
} else {
  const points = new RunTable("Points", false, true);
  points.take({ rows: data.rows, gone: [] });
  new SweepPage(data.title, points.node).show(data.sweep);
}
document.getElementById("main").append(soft(data.made));
