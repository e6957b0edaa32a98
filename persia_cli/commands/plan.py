"""`persia plan`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import AsJson, ConfDir, Overrides, examples

if TYPE_CHECKING:
    from persia_cli.cost.prediction import Prediction

EXAMPLES = examples(
    "persia plan conf=criteo                                  # at once; persia bench costs makes it more exact",
    "persia plan conf=criteo cluster.nn_workers=4 --machines machines.yaml",
    "persia plan conf=criteo --machines machines.yaml --samples-per-s 500_000 --json",
)
COSTS = Path("costs.json")
"""The file that `persia bench costs` writes by default."""
LIMITS = 3
"""Limits that are shown, the lowest first."""


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
    _show(prediction)
    if measured is None:
        propose(
            err(), f"{shlex.join(['persia', 'bench', 'costs', *(overrides or [])])}  # a minute; makes it more exact"
        )


def _show(plan: "Prediction") -> None:
    """Print a prediction; all of it is labelled so."""
    from persia_cli.commands.screen import labelled, out, size
    from persia_cli.commands.tables import columns, print_table
    from persia_cli.errors import count

    lowest = [f"{what} {limit:,.0f}" for what, limit in list(plan.limits.items())[:LIMITS]]
    low, high = plan.samples_per_s / plan.error, plan.samples_per_s * plan.error
    labelled(out(), "predicted", f"{plan.samples_per_s:,.0f} samples/s, from {plan.source}")
    labelled(out(), "error", f"the real speed may be {low:,.0f} to {high:,.0f} samples/s, a factor of {plan.error:g}")
    labelled(out(), "limits", "; ".join([f"{lowest[0]} (the bottleneck)", *lowest[1:]]))
    if plan.wanted is not None:
        share = plan.wanted / plan.samples_per_s
        labelled(out(), "wanted", f"{plan.wanted:,.0f} samples/s, {share:.0%} of the predicted speed")
    labelled(
        out(),
        "tables",
        f"up to {plan.rows:,} rows, {plan.parameters:,} parameters, {size(plan.memory)}, "
        f"{size(plan.memory_per_server)} in each server",
    )
    labelled(out(), "model", f"{count(plan.weights, 'dense weight')}")
    table = columns("role", "replicas", "CPU us/sample", "limit samples/s", "replicas needed")
    for role in plan.roles:
        needed = "" if role.needed is None else f"{role.needed:,}"
        table.add_row(role.role, f"{role.replicas:,}", f"{role.cpu_us:.2f}", f"{role.limit:,.0f}", needed)
    print_table(out(), table)
    table = columns("machines", "there", "needed", "cores used", "memory used", "Gbit/s in", "Gbit/s out", "price/h")
    for kind in plan.machines:
        table.add_row(
            kind.name,
            *(f"{kind.count:,}", f"{kind.needed:,}", f"{kind.cores:,.1f}", size(kind.memory)),
            *(f"{kind.received_gbit:.2f}", f"{kind.sent_gbit:.2f}"),
            "" if kind.price_per_hour is None else f"{kind.price_per_hour:,.2f}",
        )
    print_table(out(), table)
    for kind in plan.machines:
        if not kind.fits:
            text = f"rows do not fit the memory of {kind.count:,} {kind.name}: {kind.needed:,} are needed (predicted)"
            labelled(out(), "memory", text)
    if plan.price_per_million is not None:
        labelled(out(), "price", f"{plan.price_per_million:,.4g} for a million samples (predicted)")
    for number, assumption in enumerate(plan.assumptions):
        labelled(out(), "" if number else "assumed", assumption)


def _speed(text: str) -> float:
    from persia_cli.errors import UserError

    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < 1e12:
        raise UserError(f"--samples-per-s {text}: expected a number of samples per second, such as 500000")
    return speed
