// The list of runs and sweeps, and the choice of the page.

import { showComparison } from "./compare.js";
import { address, badge, begin, failed, h, number, show, table } from "./parts.js";
import { showRun } from "./run.js";
import { RunTable } from "./runs.js";
import { follow } from "./server.js";
import { showSweep } from "./sweep.js";

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

const pages = { "": showList, run: showRun, compare: showComparison, sweep: showSweep };
begin("persia");
Promise.resolve(pages[location.pathname.split("/").pop()](new URLSearchParams(location.search))).catch(failed);
