"""`persia bench costs`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

EXAMPLES = examples(
    "persia bench costs conf=criteo                  # then persia plan conf=criteo",
    "persia bench costs conf=criteo optimizer=rowwise_adagrad embedding.dtype=bfloat16 --output bfloat16.json",
)


def costs(
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="File of the measurements, in JSON.")] = Path(
        "costs.json"
    ),
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Measure on this machine what a step costs each role, for persia plan.

    Real jobs run for some seconds each, with several batch sizes, dims and networks, on the CPU. Ids are counted in a
    sample of the training rows.
    """
    from persia_cli.bench.machine import BUSY
    from persia_cli.commands.bench_views import noting
    from persia_cli.commands.cost_views import show_costs
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, paragraph, propose, say_json
    from persia_cli.cost.measure import measure_costs
    from persia_cli.cost.measurements import write_measurements
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import settled_run

    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: its folder does not exist; create it, or name a file elsewhere")
    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    measured = measure_costs(run, noting(as_json))
    write_measurements(output, measured)
    if as_json:
        say_json({"costs": measured.costs(), "output": str(output)})
        return
    show_costs(output, measured)
    busy = max(step.busy_cores for step in measured.steps)
    if busy > BUSY:
        text = f"other programs used up to {busy:.1f} cores meanwhile, which makes CPU time less exact"
        paragraph(err(), text, style="yellow")
    propose(err(), " ".join(["persia plan", *(overrides or []), "--costs", str(output)]))
