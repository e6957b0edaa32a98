"""`persia plan`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

EXAMPLES = examples(
    "persia plan conf=criteo                                  # at once; persia bench costs makes it more exact",
    "persia plan conf=criteo cluster.nn_workers=4 --machines machines.yaml",
    "persia plan conf=criteo --machines machines.yaml --samples-per-s 500_000 --json",
)
COSTS = Path("costs.json")
"""The file that `persia bench costs` writes by default."""


def plan(
    overrides: Overrides = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            "--costs",
            metavar="FILE",
            help="Measurements that persia bench costs wrote; without any, this machine is measured for two seconds.",
            show_default="costs.json, if it is there",
        ),
    ] = None,
    machines: Annotated[
        Path | None,
        typer.Option(
            "--machines",
            metavar="FILE",
            help="A .yaml file of machines: name, count, cores, memory, network (Gbit/s), gpus, gpu_tflops, "
            "price_per_hour and roles of each.",
            show_default="the measured one",
        ),
    ] = None,
    samples_per_s: Annotated[
        str | None,
        typer.Option("--samples-per-s", metavar="N", help="Size replicas and machines for N."),
    ] = None,
    as_json: AsJson = False,
    conf_dir: ConfDir = None,
) -> None:
    """Predict the speed of a job, its bottleneck, memory, traffic and price, and how far the speed may be wrong.

    Nothing is started; unique ids are counted in a sample of the training rows.
    """
    from dataclasses import asdict

    from persia_cli.commands.cost_views import show_plan
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, propose, say_json
    from persia_cli.cost.estimate import estimated_costs
    from persia_cli.cost.frequency import sample_frequency
    from persia_cli.cost.machines import read_machines
    from persia_cli.cost.measure import dense_weights
    from persia_cli.cost.measurements import read_measurements, require_same_settings
    from persia_cli.cost.prediction import measured_machine, predict
    from persia_cli.jobs.plan import settled_run

    run = settled_run(overrides or [], conf_dir or [], SCREEN)
    wanted = None if samples_per_s is None else _speed(samples_per_s)
    measured = read_measurements(costs or COSTS) if costs or COSTS.is_file() else None
    if measured is not None:
        require_same_settings(run, measured)
    basis = estimated_costs() if measured is None else measured.basis(costs or COSTS)
    kinds = measured_machine(basis) if machines is None else read_machines(machines)
    [weights] = dense_weights([run])
    prediction = predict(run, weights, basis, sample_frequency(run), kinds, wanted)
    if as_json:
        say_json({"predicted": True, "bottleneck": prediction.bottleneck, **asdict(prediction)})
        return
    show_plan(prediction)
    if measured is None:
        propose(
            err(), f"{shlex.join(['persia', 'bench', 'costs', *(overrides or [])])}  # a minute; makes it more exact"
        )


def _speed(text: str) -> float:
    from persia_cli.errors import UserError

    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < 1e12:
        raise UserError(f"--samples-per-s {text}: expected a number of samples per second, such as 500000")
    return speed
