"""Checks of a resumed training against the run that saved its checkpoint."""

from itertools import zip_longest

from xxhash import xxh64

from persia_cli.config.expected import is_changeable
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.control.position import TrainingData
from persia_cli.data.read.training_data import sampled
from persia_cli.errors import ConfigError, DataError, UserError, count
from persia_cli.plan.job import JobPlan
from persia_cli.plan.saved_model import differences
from persia_cli.store.checkpoints.manifest import Manifest


class FinishedError(UserError):
    """A run that cannot continue since all its steps are done, or since `train.stop_early` has ended it."""


def require_same_training(saved: Run, run: Run) -> None:
    """Raise ConfigError, with one line for each setting of `run` that must be the `saved` run's and is not."""
    found = differences(saved.model_dump(mode="json"), run.model_dump(mode="json"))
    wrong = [
        f"{key}={_spelled(now)}: the run was trained {_with(before)}, and a resumed run cannot change it; "
        "leave it out, or begin a new run with this model: persia train … init_from=RUN"
        for key, (before, now) in found
        if not is_changeable(key)
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def require_steps_left(plan: JobPlan, manifest: Manifest) -> None:
    """Raise DataError if the data set has changed since the checkpoint, FinishedError if no step is left.

    Training data in other files or row groups are refused: the remaining samples of the epoch, and the order of later
    epochs, would be others. So are files with other content, unless `dataset.accept_changed` names them.
    """
    for split, before, now in (
        ("training", manifest.progress.train_rows, plan.job.train_rows),
        ("evaluation", manifest.progress.eval_rows, plan.job.eval_rows),
    ):
        if before != now:
            raise DataError(
                f"the data set has {now:,} {split} samples and had {before:,} when the checkpoint was saved; "
                "a resumed run needs the same files; to train on with others, begin a new run with this model: persia "
                "train … init_from=RUN"
            )
    _require_unfinished(plan, manifest)
    saved, found = manifest.progress.train_data, plan.facts.train_data
    if saved is None:
        return
    if saved.order != found.order and manifest.step < plan.job.steps:
        raise DataError(
            f"{_change(saved, found)}, so their order is another, and a resumed run would repeat some and omit others; "
            "restore the files, or begin a new run with the model, by init_from"
        )
    _require_contents(plan, saved)


def _require_contents(plan: JobPlan, saved: TrainingData) -> None:
    """Raise DataError if files with samples have other content than when the checkpoint was saved."""
    dataset, scan, now = plan.run.dataset, plan.facts.found, plan.facts.train_data.contents
    if now == saved.contents or scan is None or not isinstance(dataset, ParquetDataset):
        return
    # Files of evaluation samples alone may be more or fewer.
    accepted = f"v{xxh64(''.join(now).encode()).hexdigest()}"
    if dataset.accept_changed != accepted:
        names = sampled(scan.groups, scan.split_rows)
        changed = [name for name, *pair in zip_longest(names, saved.contents, now) if pair[0] != pair[1]]
        more = f" and {count(len(changed) - 1, 'more file')}" if len(changed) > 1 else ""
        have = "have" if more else "has"
        raise DataError(
            f"{changed[0]}{more} {have} changed since the checkpoint was saved, so a resumed run would train or be "
            f"evaluated on other samples; restore the old content, or go on with the new: "
            f"dataset.accept_changed={accepted}"
        )


def _require_unfinished(plan: JobPlan, manifest: Manifest) -> None:
    if plan.job.evaluation_due and manifest.step <= plan.job.steps:
        return
    if manifest.step >= plan.job.steps:
        raise FinishedError(
            f"all {plan.job.steps:,} steps of the run are done; give train.epochs or train.steps a higher value to "
            "train on"
        )
    stop = plan.run.train.early_stop
    for tracked in manifest.progress.tracked:
        if stop and tracked.metric == stop.metric:
            if tracked.since >= stop.patience:
                raise FinishedError(
                    f"the training ended early, at step {manifest.step:,}, as {stop.metric} had not improved in "
                    f"{count(tracked.since, 'evaluation')}; raise train.stop_early.patience to train on, or set "
                    "train.stop_early=null"
                )
            break


def _with(value: object) -> str:
    return "without it" if value is None else f"with {_spelled(value)}"


def _change(before: TrainingData, now: TrainingData) -> str:
    if (before.files, before.row_groups) == (now.files, now.row_groups):
        return (
            "the training samples were in files of other names, or in files or row groups of other sizes, when the "
            "checkpoint was saved"
        )
    return f"the training samples are {_place(now)}, and were {_place(before)} when the checkpoint was saved"


def _place(data: TrainingData) -> str:
    if not data.files:
        return "generated"
    groups = f" with {count(data.row_groups, 'row group')}" if data.row_groups else ""
    return f"in {count(data.files, 'file')}{groups}"


def _spelled(value: object) -> str:
    """Return a value in the syntax of a configuration, without keys that have none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_spelled(each)}" for key, each in value.items() if each is not None) + "}"
    return "nothing" if value is None else str(value)
