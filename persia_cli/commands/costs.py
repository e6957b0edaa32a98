"""`persia bench costs`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

EXAMPLES = examples(
    "persia bench costs conf=criteo                  # then persia plan conf=criteo",
    "persia bench costs conf=criteo optimizer=rowwise_adagrad embedding.dtype=bfloat16 --output bfloat16.json",
    "persia bench costs conf=criteo --check          # how far predictions are from measurements",
)


def costs(
    overrides: Overrides = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="File of the measurements, in JSON.")
    ] = Path("costs.json"),
    check: Annotated[
        bool, typer.Option("--check", help="Also measure six other configurations, and compare their predictions.")
    ] = False,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:  # fmt: skip
    """Measure on this machine what a step costs each role, for persia plan.

    Real jobs run for some seconds each, with several batch sizes, dims and networks, on the CPU. Ids are counted in a
    sample of the training rows.
    """
    from dataclasses import asdict

    from persia_cli.bench.machine import BUSY
    from persia_cli.commands.bench_views import noting
    from persia_cli.commands.cost_views import show_check, show_costs
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, paragraph, propose, say_json
    from persia_cli.cost import check as checks
    from persia_cli.cost.measure import measure_costs
    from persia_cli.cost.measurements import write_measurements
    from persia_cli.errors import UserError
    from persia_cli.jobs.plan import settled_run

    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {output}: its folder does not exist; create it, or name a file elsewhere")
    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    measured, others = measure_costs(run, noting(as_json), check)
    write_measurements(output, measured)
    checked = checks.check(measured, others)
    if as_json:
        say_json(
            {
                "costs": measured.costs(),
                "output": str(output),
                "check": [asdict(case) for case in checked],
            }
        )
        return
    show_costs(output, measured)
    if checked:
        show_check(checked)
    busy = max(case.busy_cores for case in (*measured.steps, *others))
    if busy > BUSY:
        text = f"other programs used up to {busy:.1f} cores meanwhile, which makes CPU time less exact"
        paragraph(err(), text, style="yellow")
    propose(err(), " ".join(["persia plan", *(overrides or []), "--costs", str(output)]))
