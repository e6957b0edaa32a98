"""The plan of a job on the screen: what it trains on, its tables, its length, and warnings before it starts."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from persia_cli.commands.options import OUTPUT
from persia_cli.commands.screen import err, labelled, out, paragraph, propose, say, size
from persia_cli.commands.tables import columns, print_table
from persia_cli.config.replicas import trains_on_gpu
from persia_cli.config.schema import Checkpoint, Run
from persia_cli.config.schema.features import DenseFeature
from persia_cli.engines.key_files import key_file_of
from persia_cli.errors import count
from persia_cli.jobs.description import model_description, training_description
from persia_cli.observe.machine import this_processor
from persia_cli.plan.job import JobPlan
from persia_cli.plan.length import epoch_steps, evaluation_interval, spent_schedules, unreached
from persia_cli.plan.warm_start import DenseFit, TakenTable, WarmStart
from persia_cli.storage.addresses import printable
from persia_cli.storage.remote import without_secret
from persia_cli.store.cold.geometry import log_memory, rows_on_disk

MOST_LISTED = 20
"""Tables or weights that are listed one by one."""
MAX_NAMES = 8
"""Number of equal tables above which a plan names the first and the last only."""


def describe_job(console: Console, plan: JobPlan) -> None:
    """Print the run, its data and its model."""
    run, facts = plan.run, plan.facts
    labelled(console, "run", f"{run.name} in {plan.run_dir}")
    labelled(console, "data", facts.source)
    labelled(
        console,
        "",
        f"{_samples(plan)}; {facts.dense} dense and {len(facts.sparse)} sparse features, {count(facts.tasks, 'label')}",
    )
    if plan.facts.found and (rescaled := plan.facts.found.rescaled):
        labelled(console, "", f"large numbers get {_rescaled(rescaled)}; dataset.rescale=false turns this off")
    labelled(console, "model", model_description(run))
    if plan.job.load:
        labelled(console, "loaded", plan.job.load)
    if plan.job.warm:
        _describe_warm_start(console, plan.job.warm)
    tables = sum(len(group.tables) for group in plan.layout.feature_groups)
    on_disk = f"; {plan.cold_rows:,} more on disks, up to {size(cold.size)}" if (cold := run.embedding.cold) else ""
    labelled(console, "rows", f"{count(tables, 'table')}, up to {size(plan.memory)}{on_disk}")
    if plan.job.task == "train":
        labelled(console, "training", f"{_length(plan)} of {training_description(run)}")
        best_by = run.checkpoint.best_by
        if early := run.train.early_stop:
            by = f" by {best_by}" if best_by != early.metric else ""
            best = f"the best{by} is kept" if best_by else "the best is not saved (checkpoint.at_end=false)"
            without = count(early.patience, "evaluation")
            labelled(console, "", f"ends earlier after {without} without a better {early.metric}; {best}")
        elif best_by:
            labelled(console, "", f"the best evaluation by {best_by} is kept")
        labelled(console, "saving", _checkpoints(run.checkpoint))
    labelled(console, "cluster", f"{run.cluster.name}: {_roles(plan)}")


def _checkpoints(checkpoint: Checkpoint) -> str:
    """Return when the model is saved, and so what a crash costs."""
    minutes, steps = checkpoint.every_minutes, checkpoint.every_steps
    times = [f"every {minutes:g} minutes"] if minutes else []
    times += [f"every {steps:,} steps"] if steps else []
    times += ["at the end"] if checkpoint.at_end else []
    if not times:
        return "none; after a crash training starts again from the beginning"
    return f"{', '.join(times)}; after a crash training goes on from the newest one"


def describe_plan(console: Console, plan: JobPlan, arguments: Sequence[str]) -> None:
    """Print all that is decided before the first process starts; `--dry-run` shows this."""
    describe_job(console, plan)
    say(console, "")
    print_table(console, _tables(plan))
    paragraph(
        console,
        "This is the memory of rows, in embedding servers. Each NN worker has the dense network too: "
        "persia config model, with the same arguments, counts its weights and their memory."
        + (
            " persia data inspect PATH --memory SIZE counts the ids, and shows how many fit."
            if plan.facts.files
            else ""
        ),
    )
    if not OUTPUT.verbose:
        return
    say(console, "")
    paragraph(console, "To start each replica by hand, with ADDRESS for the address that the coordinator listens at:")
    cluster = plan.run.cluster
    has_none = cluster.tcp_encryption == "none"
    keys = None if has_none else key_file_of(None, None) or (Path("KEYS") if cluster.needs_keys else None)
    for command in plan.commands("ADDRESS", arguments, keys):
        say(console, f"  {command}")


def describe_dry_run(plan: JobPlan, arguments: Sequence[str], run_dir: str | None) -> None:
    """Print the plan of a training, what is doubtful about it, and the command that starts it."""
    describe_plan(out(), plan, arguments)
    warn_of_spent_schedules(plan)
    if not plan.is_resumed:
        in_folder = ["--run-dir", run_dir] if run_dir else []
        propose(err(), shlex.join(["persia", "train", *map(printable, arguments), *in_folder]))


def _tables(plan: JobPlan) -> Table:
    """Return the embedding tables, a line for equal ones, and the number of rows of those that share a budget."""
    servers, has_cold_tier = plan.run.cluster.embedding_servers, plan.run.embedding.cold is not None
    disks = ["rows on disks", "disks"] if has_cold_tier else []
    shown = columns("table", "dim", "dtype", "optimizer", "rows up to", "memory", *disks)
    for group in plan.layout.groups:
        # The dense weights need as many rows as the network has, whose size is not known yet.
        known = group is not plan.layout.dense_group
        most = [f"{group.capacity:,}", size(group.nbytes + log_memory(group, servers))] if known else ["-", "-"]
        if has_cold_tier:
            most += [f"{rows_on_disk(group, servers):,}", size(group.cold_bytes)] if known else ["-", "-"]
        own = most if len(group.tables) == 1 else []
        optimizer = "none (frozen)" if group.is_frozen else group.optimizer.kind
        names = [table.name for table in group.tables]
        if len(names) == 1 or OUTPUT.verbose:
            for name in names:
                shown.add_row(name, str(group.dim), group.dtype, optimizer, *own)
        if len(names) > 1:
            what = (
                f"these {len(names)} together" if OUTPUT.verbose else f"{_first_and_last(names)}: {len(names)} tables"
            )
            shown.add_row(what, str(group.dim), group.dtype, optimizer, *most)
    whole = (
        [f"{plan.cold_rows:,}", size(sum(group.cold_bytes for group in plan.layout.groups))] if has_cold_tier else []
    )
    shown.add_row("all", "", "", "", "", size(plan.memory), *whole, style="bold")
    return shown


def _first_and_last(names: Sequence[str]) -> str:
    """Return the names of tables, of many the first and the last."""
    return ", ".join(names) if len(names) <= MAX_NAMES else f"{names[0]} … {names[-1]}"


def warn_of_slow_precision(run: Run) -> None:
    """Print a warning if the run's precision is slower than float32 on this processor."""
    on_gpu = trains_on_gpu(run.train.device, run.mode.kind)
    sentence = None if on_gpu else this_processor().slow_precision(run.train.precision)
    if sentence:
        paragraph(err(), f"warning: {sentence}", style="yellow")


def warn_of_spent_schedules(plan: JobPlan) -> None:
    """Print a warning of each learning rate that is next to 0 for much of the training, and of what it ends before."""
    steps = plan.job.steps
    every = evaluation_interval(plan.run, plan.job.train_rows)
    for sentence in [*spent_schedules(plan.run, steps), *unreached(plan.run, steps, every)]:
        paragraph(err(), f"warning: {sentence}", style="yellow")


def _length(plan: JobPlan) -> str:
    """Return the number of steps, of a training that may end earlier also as whole epochs."""
    if plan.job.known_steps is None:
        return "all files that come"
    epochs, rest = divmod(plan.job.steps, epoch_steps(plan.run, plan.job.train_rows))
    if plan.run.train.early_stop is None:
        return count(plan.job.steps, "step")
    return f"up to {count(plan.job.steps, 'step')}" + ("" if rest else f" ({count(epochs, 'epoch')})")


def _rescaled(features: Sequence[DenseFeature]) -> str:
    """Return the transforms that features got by default, and their names."""
    names: dict[str, list[str]] = {}
    for feature in features:
        names.setdefault(str(feature.transform), []).append(feature.name)
    return "; ".join(f"{transform} for {', '.join(columns)}" for transform, columns in names.items())


def _samples(plan: JobPlan) -> str:
    facts = plan.facts
    if plan.job.task == "predict":
        return f"{count(facts.eval_rows, 'sample')} to score"
    if plan.job.task == "evaluate":
        return count(facts.eval_rows, "test sample" if plan.job.scored_part == "test" else "evaluation sample")
    if plan.run.follows is not None:
        return "samples as they come"
    unused = f", {count(facts.window_rows, 'row')} in their histories" if facts.window_rows else ""
    unused += f", {count(facts.unused_rows, 'row')} in no split" if facts.unused_rows else ""
    train, evaluation = f"{facts.train_rows:,} training", f"{facts.eval_rows:,} evaluation"
    if facts.test_rows:
        return f"{train}, {evaluation} and {facts.test_rows:,} test samples{unused}"
    return f"{train} and {evaluation} samples{unused}"


def _roles(plan: JobPlan) -> str:
    replicas = Counter(replica.role for replica in plan.replicas)
    return ", ".join(f"{number} {role}" for role, number in replicas.items())


def _describe_warm_start(console: Console, warm: WarmStart) -> None:
    """Print which rows and weights are taken, from where, which begin anew, and which are not used."""
    source = (
        f"the model of step {warm.step:,} in {without_secret(warm.checkpoint)}"
        if warm.checkpoint
        else "pre-trained vectors"
    )
    labelled(console, "begins", f"with {source}")
    for line in warm_start_lines(warm):
        labelled(console, "", line)
    for note in warm.notes:
        paragraph(console, f"warning: {note}", style="yellow")


def warm_start_lines(warm: WarmStart) -> Iterator[str]:
    """Yield the parts of what a run begins with, one sentence each."""
    tables = [
        f"{table.name}: {count(table.rows, 'row')}{'' if table.source == table.name else f' of table {table.source}'}, "
        f"{_optimizer_of(table)}"
        for table in warm.tables
    ]
    yield from tables[:MOST_LISTED]
    if len(tables) > MOST_LISTED:
        rest = warm.tables[MOST_LISTED:]
        yield f"and {count(sum(table.rows for table in rest), 'row')} of {count(len(rest), 'more table')}"
    for file in warm.vectors:
        names = f"ids {file.id}, vectors {file.vector}"
        yield f"{file.name}: {count(file.rows, 'vector')} of {without_secret(file.path)} ({names})"
    if warm.new:
        yield f"new tables: {_some(warm.new)}"
    if warm.unused:
        yield f"tables that are not used: {_some(warm.unused)}"
    if warm.dense:
        yield from _dense_lines(warm.fit)
    elif warm.checkpoint:
        yield "dense weights: new"


def _optimizer_of(table: TakenTable) -> str:
    if table.frozen:
        return "frozen"
    return "with the state of their optimizer" if table.states else "their optimizer begins anew"


def _dense_lines(fit: DenseFit | None) -> Iterator[str]:
    if fit is None:
        yield "dense weights: those whose names and shapes fit"
        return
    whole = len(fit.taken) + len(fit.new)
    states = f"{fit.states} of them with the state of their optimizer" if fit.states else "their optimizer begins anew"
    yield f"dense weights: {len(fit.taken)} of {whole} taken, {states}"
    if fit.new:
        yield f"new dense weights: {_some(fit.new)}"
    if fit.unused:
        yield f"dense weights that are not used: {_some(fit.unused)}"


def _some(names: Sequence[str]) -> str:
    """Return names in a list; of many only the first, and how many more there are."""
    more = [f"and {len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
    return ", ".join([*names[:MOST_LISTED], *more])
