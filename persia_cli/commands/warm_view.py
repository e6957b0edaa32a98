"""A few lines, before a run starts, about the rows and weights it begins with."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from persia_cli.commands.screen import labelled, paragraph
from persia_cli.errors import count
from persia_cli.plan.warm_start import DenseFit, TakenTable, WarmStart
from persia_cli.storage.remote import without_secret

MOST = 20
"""Tables or weights that are listed one by one."""


def describe_warm_start(console: Console, warm: WarmStart) -> None:
    """Print which rows and weights are taken, from where, which begin anew, and which are not used."""
    source = (
        f"the model of step {warm.step:,} in {without_secret(warm.checkpoint)}"
        if warm.checkpoint
        else "pre-trained vectors"
    )
    labelled(console, "begins", f"with {source}")
    for line in lines(warm):
        labelled(console, "", line)
    for note in warm.notes:
        paragraph(console, f"warning: {note}", style="yellow")


def lines(warm: WarmStart) -> Iterator[str]:
    """Yield the parts of what a run begins with, one sentence each."""
    tables = [
        f"{each.name}: {count(each.rows, 'row')}{'' if each.source == each.name else f' of table {each.source}'}, "
        f"{_optimizer_of(each)}"
        for each in warm.tables
    ]
    yield from tables[:MOST]
    if len(tables) > MOST:
        rest = warm.tables[MOST:]
        yield f"and {count(sum(each.rows for each in rest), 'row')} of {count(len(rest), 'more table')}"
    for each in warm.vectors:
        columns = f"ids {each.id}, vectors {each.vector}"
        yield f"{each.name}: {count(each.rows, 'vector')} of {without_secret(each.path)} ({columns})"
    if warm.new:
        yield f"new tables: {some(warm.new)}"
    if warm.unused:
        yield f"tables that are not used: {some(warm.unused)}"
    if warm.dense:
        yield from _dense(warm.fit)
    elif warm.checkpoint:
        yield "dense weights: new"


def _optimizer_of(table: TakenTable) -> str:
    if table.frozen:
        return "frozen"
    return "with the state of their optimizer" if table.states else "their optimizer begins anew"


def _dense(fit: DenseFit | None) -> Iterator[str]:
    if fit is None:
        yield "dense weights: those whose names and shapes fit"
        return
    whole = len(fit.taken) + len(fit.new)
    states = f"{fit.states} of them with the state of their optimizer" if fit.states else "their optimizer begins anew"
    yield f"dense weights: {len(fit.taken)} of {whole} taken, {states}"
    if fit.new:
        yield f"new dense weights: {some(fit.new)}"
    if fit.unused:
        yield f"dense weights that are not used: {some(fit.unused)}"


def some(names: Sequence[str]) -> str:
    """Return names in a list; of many only the first, and how many more there are."""
    more = [f"and {len(names) - MOST} more"] if len(names) > MOST else []
    return ", ".join([*names[:MOST], *more])
