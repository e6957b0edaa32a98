"""Tables of `persia bench capacity` and `persia bench scaling`."""

from collections.abc import Sequence

from persia_cli.bench.capacity import CapacityResult
from persia_cli.bench.result import Result
from persia_cli.bench.scaling import LINEAR, ROLES, SPEED_UP, cpu_us_per_sample
from persia_cli.bench.sizes import size_in_words
from persia_cli.commands.bench_views import warn_of_others
from persia_cli.commands.screen import labelled, out, paragraph, size
from persia_cli.commands.screen_tables import columns, print_rows
from persia_cli.config.schema import Run


def show_capacity(result: CapacityResult) -> None:
    """Print a row for each size of the model."""
    labelled(
        out(),
        "measured",
        f"{result.rounds} alternating rounds of {result.steps} steps of {result.batch_size} samples after one that "
        f"fills the memory, medians; dim {result.dim}, Zipf {result.zipf:g}",
    )
    labelled(out(), "memory", f"{size(result.budget)} for rows and index of all servers: {result.capacity:,} rows")
    exceeding = result.exceeding()
    smallest = size_in_words(exceeding[0].parameters)
    table = columns("parameters", "ids", "samples/s", "least", "most", f"is x {smallest}", "CPU ms/step")
    for each in result.sizes:
        side = each.side
        table.add_row(
            size_in_words(each.parameters),
            f"{each.ids:,}",
            *(f"{rate:,.0f}" for rate in (side.median, side.least, side.most)),
            "" if each.ratio is None else f"{each.ratio:.3f}",
            f"{sum(side.cpu_ms.values()):.1f}",
        )
    print_rows(out(), table)
    table = columns(
        "parameters", "ids hit", "look-ups hit", "rows", "evicted", "memory", "of budget", "AUC", "possible"
    )
    for each in result.sizes:
        table.add_row(
            size_in_words(each.parameters),
            f"{each.hit_rate:.1%}",
            f"{each.look_up_hit_rate:.1%}",
            f"{each.rows:,}",
            f"{each.evicted:,}",
            size(each.memory),
            f"{each.memory / result.budget:.1%}",
            f"{each.side.auc:.4f}",
            f"{each.best_auc:.4f}",
        )
    print_rows(out(), table)
    partly = [size_in_words(each.parameters) for each in exceeding if not each.was_full]
    if partly:
        text = f"memory was not full before the measured turns ({', '.join(partly)}): lower embedding.memory, or raise"
        paragraph(out(), f"{text} --steps", style="yellow")
    warn_of_others([result])


def show_scaling(run: Run, results: Sequence[Result], cores: int) -> None:
    """Print a row for each number of replicas of each role."""
    first = results[0]
    labelled(
        out(),
        "measured",
        f"{first.rounds} alternating rounds of {first.steps} steps of {run.train.batch} samples, medians; one "
        "replica of each other role, each pinned to a processor",
    )
    table = columns("role", "replicas", "samples/s", "speed-up", "of linear", *(f"{role} CPU us" for role in ROLES))
    for result in results:
        for side in result.sides:
            table.add_row(
                result.case,
                side.name,
                f"{side.median:,.0f}",
                f"{side.ratios[SPEED_UP]:.3f}",
                f"{side.ratios[LINEAR]:.3f}",
                *(f"{cpu_us_per_sample(side, role, run.train.batch):.2f}" for role in ROLES),
            )
    print_rows(out(), table)
    labelled(out(), "CPU us", "CPU time per sample of all replicas of the role, in microseconds")
    most = max(int(side.name) for side in first.sides)
    if len(ROLES) - 1 + most > cores:
        text = f"{len(ROLES) - 1 + most} replicas share {cores} processors, so speed-ups are not those of as many"
        paragraph(out(), f"{text} machines: compare the CPU time per sample", style="yellow")
    warn_of_others(results)
