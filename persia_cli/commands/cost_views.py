"""Costs of roles and predictions on the screen."""

from pathlib import Path

from persia_cli.commands.screen import err, labelled, out, size
from persia_cli.commands.tables import columns, print_table
from persia_cli.cost.measurements import Measurements
from persia_cli.cost.model import TERMS
from persia_cli.cost.prediction import Prediction
from persia_cli.errors import count

LIMITS = 3
"""Limits that are shown, the lowest first."""


def show_costs(path: Path, measured: Measurements) -> None:
    """Print the CPU time of each role in the measured steps, and the fitted costs."""
    labelled(out(), "machine", measured.machine.processor)
    table = columns("configuration", *(f"{role} ms" for role in TERMS), "samples/s", "others' cores")
    for step in measured.steps:
        cpu = [f"{step.cpu_s[role] * 1e3:.2f}" for role in TERMS]
        table.add_row(step.name, *cpu, f"{step.samples_per_s:,.0f}", f"{step.busy_cores:.1f}")
    print_table(out(), table)
    table = columns("cost", "ns")
    for role, costs in measured.costs().items():
        for term, seconds in costs.items():
            table.add_row(f"{role}, each of {term.replace('_', ' ')}", f"{seconds * 1e9:.4g}")
    print_table(out(), table)
    labelled(err(), "written", str(path))


def show_plan(plan: Prediction) -> None:
    """Print a prediction; all of it is labelled so."""
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
