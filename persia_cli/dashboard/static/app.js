// The live pages: a list of runs and sweeps, a run, a comparison, a sweep; and the choice of the page.

import { showComparison } from "./compare.js";
import { Logs } from "./logs.js";
import { address, badge, begin, failed, h, number, show, table } from "./parts.js";
import { RunPage } from "./run.js";
import { RunTable } from "./runs.js";
import { follow, load, paced } from "./server.js";
import { SweepPage } from "./sweep.js";

const HEAD = ["sweep", "state", "points", "done", "failed", "arguments"];

function showList() {
  const link = (sweep) => h("a", { id: `open ${sweep}`, href: address("sweep", { sweep }) }, sweep);
  const runs = new RunTable("Runs"), sweeps = h("div");
  begin("Runs and sweeps", runs.node, sweeps);
  follow("rows", [], { rows(found) {
    document.getElementById("place").textContent = found.folder;
    runs.take(found);
    const cells = ({ sweep, state, points, done, failed, text }) =>
      [link(sweep), badge(state), number(points), number(done), number(failed), text];
    show(sweeps, found.sweeps.length ? table("Sweeps", [HEAD, ...found.sweeps.map(cells)]) : null);
  } });
}

async function showRun(asked) {
  const run = asked.get("run"), logs = new Logs(run), page = new RunPage(run, await load("panels"), logs.node);
  const soon = paced(async () => {
    page.show(await load("run", { run }));
    await logs.refresh();
  }, failed);
  follow("curves", [["run", run]], {
    curves: (event) => page.curves.take(event),
    state({ state, step, samples_per_s }) {
      page.now.textContent = state === "running" ? `Step ${number(step)}, ${number(samples_per_s)} samples/s` : "";
      soon();
    },
    gone: failed,
  });
}

function showSweep(asked) {
  const sweep = asked.get("sweep"), points = new RunTable("Points", true, true), page = new SweepPage(sweep, points.node);
  const soon = paced(async () => page.show(await load("sweep", { sweep })), failed);
  follow("rows", [["sweep", sweep]], { rows(found) { points.take(found); soon(); }, gone: failed });
}

const pages = { "": showList, run: showRun, compare: showComparison, sweep: showSweep };
begin("persia");
Promise.resolve(pages[location.pathname.split("/").pop()](new URLSearchParams(location.search))).catch(failed);
