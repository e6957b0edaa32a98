"""Checks of a run's settings that are valid separately: its network, its data and the ranks must fit each other."""

from collections.abc import Collection, Iterator
from typing import Any, Literal

from persia_cli.config.schema import (
    AsyncMode,
    Bpr,
    Branches,
    Esmm,
    InBatchSoftmax,
    Pairwise,
    ParquetDataset,
    Poisson,
    Run,
    SampledSoftmax,
)
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.config.schema.sequences import Sequential
from persia_cli.errors import ConfigError
from persia_cli.model.requirements import require_fit
from persia_cli.plan.columns import input_shape, items_of, next_item_features, next_item_loss, sparse_features
from persia_cli.store.layout import NEGATIVES, EmbeddingLayout

SHARE = 0.1
"""Fraction of the samples that a proposed part has."""


def check_settings(run: Run, eval_rows: int) -> None:
    """Raise ConfigError for the first reason why a training would not do what its settings request."""
    for reason in _reasons(run, eval_rows):
        raise ConfigError(reason)


def _reasons(run: Run, eval_rows: int) -> Iterator[str]:
    if not eval_rows and (key := next(iter(run.judging_metrics), None)):
        yield f"{key} compares evaluations, and the data set has none{split_line(run, 'eval')}"
    if run.eval.every_steps is None and run.eval.every_epochs is None:
        for key, metric in run.judging_metrics.items():
            yield f"{key}={metric} compares evaluations during training; set eval.every_epochs=1"
    if not eval_rows and run.eval.lists:
        yield f"eval.retrieval needs evaluation samples, and the data set has none{split_line(run, 'eval')}"
    if run.follows is None:
        for key, is_given in (("train.until", run.train.until is not None), ("eval.next", run.eval.next)):
            if is_given:
                yield f"{key} is for data that grows; set dataset.follow=true, or leave it out"
    if isinstance(run.embedding.expire_after, str) and (run.follows is None or run.follows.time is None):
        yield (
            f"embedding.expire_after={run.embedding.expire_after} is a time of data that grows: name its column in "
            "dataset.follow.time, or give a number of steps"
        )
    for name, table in run.embedding.tables.items():
        if not table.trainable and run.init_from is None:
            yield (
                f"embedding.tables.{name}.trainable=false: nothing gives this table its rows; name a saved model or "
                "vectors in init_from"
            )
    yield from _of_publishing(run, eval_rows)
    yield from _of_losses(run)
    yield from _of_windows(run)
    yield from _of_one_sample(run)


def _of_publishing(run: Run, eval_rows: int) -> Iterator[str]:
    """Yield the reasons why the changes of a model cannot be named, or not be judged."""
    if run.publish is None:
        return
    if isinstance(run.mode, AsyncMode):
        yield "publish needs dense weights that NN workers hold; use mode=hybrid or mode=sync, or leave publish out"
    if run.embedding.cold is not None:
        yield "publish cannot name what changes in a cold tier; leave out publish or embedding.cold"
    if any(isinstance(loss, SampledSoftmax) and loss.candidates == "uniform" for loss in run.losses):
        yield (
            "publish finds changed rows by their last use, which candidates=uniform changes without; use "
            "candidates=batch, or leave publish out"
        )
    if not eval_rows and not run.eval.next and run.publish.guard.is_set:
        yield f"publish.guard judges evaluations, and the data set has none{split_line(run, 'eval')}"


def _of_losses(run: Run) -> Iterator[str]:
    for name, loss in zip(run.links, run.losses, strict=True):
        given = f"train.losses.{name}.kind={loss.kind}"
        if run.model.output_bias == "base_rate" and isinstance(loss, Pairwise | Bpr):
            yield (
                f"model.output_bias=base_rate has no effect with {given}, which only compares outputs; leave "
                "model.output_bias out"
            )
        if isinstance(run.model, Esmm) and loss.LINK != "logistic":
            yield (
                f"model.kind=esmm multiplies probabilities, and {given} predicts a number; use bce or focal, or "
                "model.kind=mmoe"
            )
        if isinstance(loss, Poisson) and run.train.task_weights == "uncertainty":
            yield (
                f"train.task_weights=uncertainty divides each loss by a variance that it learns, and {given} is below "
                "0 for large labels, where it would fall without end; use huber or mse, or train.task_weights=given"
            )


def _of_windows(run: Run) -> Iterator[str]:
    """Yield the reasons why not each event of a window would be a target once."""
    dataset, loss = run.dataset, next_item_loss(run)
    if not isinstance(dataset, ParquetDataset) or dataset.samples is None:
        return
    name = dataset.samples.of
    if loss is None or loss.positions != "all":
        yield (
            "dataset.samples: of the events of a window only the newest would train; set "
            f"train.losses={{{dataset.label_names[0]}: {{kind: sampled_softmax, positions: all}}}}, or leave "
            "dataset.samples out"
        )
    named = run.model.sequence if isinstance(run.model, Sequential) else None
    if (feature := next((feature for feature in dataset.sparse if feature.name == named), None)) is None:
        return  # the loss refuses the network
    length = dataset.histories[name].max_length
    if (dataset.history_of(feature) or ("",))[0] != name:
        yield f"dataset.samples: windows are of history {name}, and model.attend names {feature.name}; name one of both"
    elif feature.max_length != length:
        yield (
            f"dataset.sparse: {feature.name} has max_length: {feature.max_length}, and windows have {length} events; "
            f"leave it out, or set dataset.histories.{name}.max_length={feature.max_length}"
        )


def _of_one_sample(run: Run) -> Iterator[str]:
    """Yield the reasons against steps of one sample, which cannot be compared with another."""
    alone = run.train.batch // (run.cluster.nn_workers if isinstance(run.mode, AsyncMode) else 1)
    if alone == 1:
        for name, loss in zip(run.links, run.losses, strict=True):
            if isinstance(loss, Pairwise | Bpr | InBatchSoftmax):
                yield (
                    f"train.losses.{name}.kind={loss.kind} compares samples of a step, which has only one; raise "
                    "train.batch_size"
                )
    if alone // run.train.accumulate <= 1 and (layer := _normalising(run)):
        parts = ", in each of train.accumulate's parts" if run.train.accumulate > 1 else ""
        yield (
            f"{layer} normalises over the samples of a step{parts}, and there is only one; raise train.batch_size, or "
            "use model.norm=layer and no dice"
        )


def _normalising(run: Run) -> str | None:
    """Return the setting by which a network normalises over samples, if it does."""
    model = run.model
    if isinstance(model, Branches):
        return "model.kind=branches"
    if not isinstance(model, Perceptrons):
        return None
    if model.norm == "batch":
        return "model.norm=batch"
    activations = model.activation if isinstance(model.activation, tuple) else (model.activation,)
    return "model.activation=dice" if "dice" in activations else None


def require_network(run: Run, layout: EmbeddingLayout) -> None:
    """Raise ConfigError if the run's network cannot be built on its features, or cannot be trained by its ranks."""
    require_fit(run.model, input_shape(run, layout))
    if any(isinstance(loss, InBatchSoftmax) for loss in run.losses):
        require_two_sides(run, "train.losses: kind=in_batch_softmax")
    if next_item_loss(run) is not None:
        _require_next_items(run, layout)
    if run.eval.lists:
        require_two_sides(run, "eval.retrieval")
    for loss in run.losses:
        correcting = isinstance(loss, InBatchSoftmax) and loss.correction == "log_q"
        if correcting and isinstance(run.mode, AsyncMode) and run.cluster.nn_workers > 1:
            raise ConfigError(
                "train.losses: with mode.kind=async each NN worker counts only the items in its batches; use "
                "correction=none, cluster.nn_workers=1 or another mode"
            )
    if isinstance(run.mode, AsyncMode) and run.train.device not in ("auto", "cpu"):
        raise ConfigError(
            f"train.device={run.train.device}: with mode.kind=async dense weights are only on the cpu; "
            "use train.device=cpu, or another mode"
        )


def require_one_item(run: Run, lists: Collection[str]) -> None:
    """Raise ConfigError if samples may have no or several items to predict; `lists` are the columns of lists."""
    places = next_item_features(run)
    item = None if places is None else sparse_features(run)[places[0]]
    if item is not None and (item.makes_lists or item.drops_nulls or item.column_name in lists):
        raise ConfigError(
            f"train.losses: kind=sampled_softmax needs exactly one id of {item.name} in each sample; give it a column "
            "with one value per row, without separator, padding or missing_id: none"
        )


def require_two_sides(run: Run, what: str) -> None:
    """Raise ConfigError if the run's network has no vectors of users and items, which `what` needs."""
    if not items_of(run.model):
        raise ConfigError(
            f"{what} needs a network with a vector of the user and one of the item, and "
            f"model.kind={run.model.kind} has none; use model.kind=two_tower or model.kind=sasrec"
        )


def _require_next_items(run: Run, layout: EmbeddingLayout) -> None:
    """Raise ConfigError unless the network predicts next elements of sequences, of a table with one row per item."""
    loss = "train.losses: kind=sampled_softmax"
    if not isinstance(run.model, Sequential):
        raise ConfigError(
            f"{loss} predicts the next elements of sequences, and model.kind={run.model.kind} has no states of them; "
            "use model.kind=sasrec, ligr or hstu"
        )
    if run.train.compile:
        raise ConfigError(
            f"{loss} computes batches of other lengths in each step, and train.compile=true would compile each again; "
            "set train.compile=false"
        )
    if run.model.embedding_dropout:
        raise ConfigError(
            f"{loss} drops columns of a sequence by model.dropout, and model.embedding_dropout has no effect on it; "
            "leave model.embedding_dropout out, and raise model.dropout"
        )
    item = next(feature for feature in sparse_features(run) if feature.name == run.model.candidate)
    [table] = (table for table in layout.tables() if table.name == item.table_name)
    if table.rounds:
        raise ConfigError(
            f"{loss} compares items by their rows, and embedding.tables.{table.name}.hash_stack gives several to each; "
            "leave hash_stack out"
        )
    if NEGATIVES in (feature.name for feature in sparse_features(run)):
        raise ConfigError(
            f"dataset.sparse: {NEGATIVES} is the name of the items that {loss} draws; give your feature another, and "
            "its column by column"
        )


def split_line(run: Run, lacking: Literal["eval", "test"]) -> str:
    """Return the end of a sentence: the line to paste into the data set's YAML, `???` where only the user knows.

    It is empty for a data set without such a split.
    """
    dataset = run.dataset
    if not isinstance(dataset, ParquetDataset):
        return ""
    split = dataset.split
    has_fraction = getattr(split, "eval_fraction", None)
    share: dict[str, Any] = {"eval_fraction": has_fraction or SHARE}
    if lacking == "test":
        share["test_fraction"] = min(share["eval_fraction"], (1.0 - share["eval_fraction"]) / 2.0)
    if split.kind in ("files", "column"):
        keys = split.model_dump(mode="json", exclude_none=True) | {lacking: "???"}
        keys = {key: value for key, value in keys.items() if value != []}
    elif split.kind == "last":
        keys = split.model_dump(mode="json", exclude_none=True) | {"test": True}
    elif split.kind == "time":
        keys = split.model_dump(mode="json", include={"kind", "column", "format"}, exclude_none=True) | share
    else:
        keys = {"kind": "hash"} | split.model_dump(mode="json", include={"column"}, exclude_none=True) | share
    import yaml

    text = yaml.safe_dump(keys, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True).strip()
    return f"; paste into the YAML of the data set: split: {text}"
