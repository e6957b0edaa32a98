"""Checks of a job against the run whose model it loads: its settings and its data.

An evaluation or a prediction may change what has an effect when samples are scored; a resumed training only what is
marked as changeable in the schema, and its data must be the same.
"""

from collections.abc import Iterator, Mapping, Set
from itertools import zip_longest
from typing import Any

from xxhash import xxh64

from persia_cli.config.expected import is_changeable
from persia_cli.config.schema import ParquetDataset, Run, Table
from persia_cli.control.position import TrainingData
from persia_cli.data.read.order import sampled
from persia_cli.errors import ConfigError, DataError, UserError, count
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import JobPlan
from persia_cli.storage.addresses import local_path
from persia_cli.store.checkpoints.manifest import Manifest
from persia_cli.store.layout import EmbeddingLayout

_USED = (
    "name",
    "dataset",
    "model.file",
    "embedding.memory",
    "embedding.capacity",
    "embedding.cold",
    "embedding.dtype",
    "embedding.wire",
    "embedding.num_partitions",
    "mode",
    "train.batch_size",
    "train.accumulate",
    "train.calibrate",
    "train.threads",
    "train.losses",
    "train.precision",
    "train.device",
    "train.compile",
    "cluster",
)
"""Keys, with all keys below them, that have an effect when a saved model scores samples."""
_USED_OF_TABLES = ("dtype", "share")


def require_saved_model(saved: Run, run: Run, verb: str, dropped: tuple[str, ...] = ()) -> None:
    """Raise ConfigError for settings of `run` that differ from the `saved` run's but must not, or have no effect.

    `verb` names the task, such as "evaluating". The keys `dropped`, and those below them, differ since the command
    itself has set them.
    """
    tables = saved.embedding.tables.keys() | run.embedding.tables.keys()
    differing = dict(differences(_values(saved, tables), _values(run, tables)))
    wrong = [
        f"{key}={_spelled(now)}: {_why(key, before, verb)}"
        for key, (before, now) in differing.items()
        if not _is_below(key, dropped) and not _is_used(key)
    ]
    wrong = wrong or [*_other_inputs(saved, run)]
    if wrong:
        raise ConfigError("\n".join(wrong))


def require_same_widths(saved: Run, dataset: ParquetDataset) -> None:
    """Raise DataError for a dense column of lists whose rows had one number where the `saved` run was trained."""
    if not isinstance(saved.dataset, ParquetDataset):
        return
    plain = {feature.name for feature in saved.dataset.dense_features if feature.width is None}
    for feature in dataset.dense_features:
        if feature.width is not None and feature.name in plain:
            raise DataError(
                f"column {feature.name} holds lists of {feature.width} numbers, and the model was trained with one "
                "number per row; write numbers in their place"
            )


def _values(run: Run, tables: Set[str]) -> dict[str, Any]:
    """Return all settings of a run as plain values, with an entry for each of these tables."""
    values = run.model_dump(mode="json")
    settings = values["embedding"]["tables"]
    values["embedding"]["tables"] = {name: settings.get(name) or Table().model_dump() for name in sorted(tables)}
    return values


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield each key path with different values, and both values; None if one does not exist."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield path, (before, now)


def _is_used(key: str) -> bool:
    parts = key.split(".")
    if parts[:2] == ["embedding", "tables"] and len(parts) > 3:
        return parts[3] in _USED_OF_TABLES
    return _is_below(key, _USED)


def _is_below(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == group or key.startswith(f"{group}.") for group in keys)


def _why(key: str, before: Any, verb: str) -> str:
    if key.startswith(("model.", "embedding.tables.")):
        return f"the saved model has {_spelled(before)}, which {verb} cannot change; leave it out"
    return f"{verb} has no use for it, since nothing is trained; leave it out"


def _other_inputs(saved: Run, run: Run) -> Iterator[str]:
    """Yield a sentence for each difference between the inputs of the network in the two data sets."""
    old, new = embedding_layout(saved), embedding_layout(run)
    had, has = input_shape(saved, old), input_shape(run, new)
    if had.tasks != has.tasks:
        yield f"dataset.labels: the saved model has {count(had.tasks, 'label')}, and not {has.tasks}"
    if had.dense != has.dense:
        yield f"dataset.dense: the saved model reads {count(had.dense, 'dense feature')}, and not {has.dense}"
    before, now = _features(old), _features(new)
    if before != now:
        first = next((pair for pair in zip(before, now, strict=False) if pair[0] != pair[1]), None)
        what = (
            f"{first[0]}, and not {first[1]}"
            if first
            else f"{count(len(before), 'sparse feature')}, and not {len(now)}"
        )
        yield f"dataset.sparse: the saved model reads {what}; do not change names, tables, pooling and order"


def _features(layout: EmbeddingLayout) -> list[str]:
    """Return a description of each sparse feature, with all that the network and the tables depend on."""
    tables = {table.number: table.name for table in layout.tables()}
    return [
        f"{feature.name} (table {tables[feature.table]}, pooling {feature.pooling}"
        f"{f', max_length {feature.max_length}' if feature.pooling == 'none' else ''})"
        for feature in layout.features
    ]


class FinishedError(UserError):
    """A run that cannot continue since all its steps are done, or since `train.stop_early` has ended it."""


def require_same_training(saved: Run, run: Run) -> None:
    """Raise ConfigError, with one line for each setting of `run` that must be the `saved` run's and is not."""
    changes = differences(saved.model_dump(mode="json"), run.model_dump(mode="json"))
    wrong = [
        f"{key}={_spelled(now)}: the run was trained {_with(before)}, and a resumed run cannot change it; "
        "leave it out, or begin a new run with this model: persia train … init_from=RUN"
        for key, (before, now) in changes
        if not is_changeable(key)
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def require_steps_left(plan: JobPlan, manifest: Manifest) -> None:
    """Raise DataError if the data set has changed since the checkpoint, FinishedError if no step is left.

    Training data in other files or row groups are refused: the remaining samples of the epoch, and the order of later
    epochs, would be others. So are files with other content, unless `dataset.accept_changed` names them.
    """
    if plan.run.follows is not None:
        _require_same_place(plan, manifest)
        return
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
    saved, new = manifest.progress.train_data, plan.facts.train_data
    if saved is None:
        return
    if saved.order != new.order and manifest.step < plan.job.steps:
        raise DataError(
            f"{_change(saved, new)}, so their order is another, and a resumed run would repeat some and omit others; "
            "restore the files, or begin a new run with the model, by init_from"
        )
    _require_contents(plan, saved)


def _require_same_place(plan: JobPlan, manifest: Manifest) -> None:
    """Raise DataError if data that grows is elsewhere, for the record names its files; FinishedError at the end."""
    dataset, before = plan.run.dataset, manifest.config["dataset"].get("path")
    assert isinstance(dataset, ParquetDataset)
    if before not in (dataset.path, str(local_path(dataset.paths[0]).absolute())):
        raise DataError(
            f"dataset.path={dataset.place}: the training has followed {before}, and the record of its files has their "
            "paths there; leave dataset.path out, or begin a new run with the model, by init_from"
        )
    _require_unfinished(plan, manifest)


def _require_contents(plan: JobPlan, saved: TrainingData) -> None:
    """Raise DataError if files with samples have other content than when the checkpoint was saved."""
    dataset, scan, now = plan.run.dataset, plan.facts.found, plan.facts.train_data.contents
    if now == saved.contents or scan is None or not isinstance(dataset, ParquetDataset):
        return
    # Files of evaluation samples alone may be more or fewer.
    accepted = f"v{xxh64(''.join(now).encode()).hexdigest()}"
    if dataset.accept_changed != accepted:
        names = [*sampled(scan.groups, scan.split_rows), *(f"the data of history {name}" for name in dataset.histories)]
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
    return f"the training samples are {_described(now)}, and were {_described(before)} when the checkpoint was saved"


def _described(data: TrainingData) -> str:
    if not data.files:
        return "generated"
    groups = f" with {count(data.row_groups, 'row group')}" if data.row_groups else ""
    return f"in {count(data.files, 'file')}{groups}"


def _spelled(value: object) -> str:
    """Return a value in the syntax of a configuration, without keys that have none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_spelled(below)}" for key, below in value.items() if below is not None) + "}"
    return "nothing" if value is None else str(value)
