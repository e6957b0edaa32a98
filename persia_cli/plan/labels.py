"""The labels and weights of a data set before a training or an evaluation: their checks, and their base rates."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from persia_cli.config.schema import (
    Bce,
    Bpr,
    Esmm,
    Focal,
    InBatchSoftmax,
    Pairwise,
    ParquetDataset,
    Run,
    SampledSoftmax,
)
from persia_cli.errors import DataError
from persia_cli.metric import AUC, Link, is_of_retrieval, keys_of
from persia_cli.model.requirements import require_fit
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout

if TYPE_CHECKING:
    from persia_cli.data.read.facts import DatasetFacts
    from persia_cli.data.read.label_values import LabelEnds

_TWO_CLASSES = (AUC, "gauc", "ne")
"""Metrics that need positive and negative samples."""
_OUTPUTS: Mapping[Link, Callable[[float], float]] = {
    "logistic": lambda mean: math.log(mean) - math.log1p(-mean),
    "identity": lambda mean: mean,
    "exp": math.log,
}
"""The output of a network that predicts a mean: the inverse of each link."""


def require_labels(run: Run, facts: "DatasetFacts", trains: bool) -> None:
    """Raise DataError for labels or weights from which nothing can be learned, or by which nothing can be judged.

    Read labels and weights up to the first rows that show that all is well.
    """
    if facts.found is None:
        return
    from persia_cli.data.read.label_values import label_ends  # needs pyarrow

    assert isinstance(run.dataset, ParquetDataset)
    is_chain = isinstance(run.model, Esmm)
    reasons: list[str] = []
    if trains:
        reasons += _of_training(run, facts.train_rows, label_ends(facts.found, "train", run.links, is_chain))
    if facts.eval_rows and not reasons:
        ends = label_ends(facts.found, "eval", run.links, is_chain)
        reasons += _of_evaluation(run, facts.eval_rows, ends, trains)
    if reasons:
        raise DataError(reasons[0])


def defined(run: Run, facts: "DatasetFacts", metric: str) -> str:
    """Return a metric if the evaluation rows define it, and the loss otherwise."""
    if facts.found is None or not facts.eval_rows:
        return metric
    from persia_cli.data.read.label_values import label_ends  # needs pyarrow

    ends = label_ends(facts.found, "eval", run.links, isinstance(run.model, Esmm))
    return "loss" if any(_of_metric("", metric, ends)) else metric


def _of_training(run: Run, rows: int, found: "LabelEnds") -> Iterator[str]:
    if not found.has_weight:
        yield _without_weight(run, f"{rows:,} training")
        return
    for (name, ends), loss in zip(found.ends.items(), run.losses, strict=True):
        if not loss.weight:
            continue
        if ends is None:
            yield f"label {name} is null in all training rows that have weight; correct dataset.labels or the data"
        elif ends == (1.0, 1.0) and isinstance(loss, Bce | Focal):
            yield (
                f"label {name} is 1 in all training rows, so train.losses.{name}.kind={loss.kind} would learn to "
                "predict 1 always; add rows with label 0, or train model=two_tower with train.losses="
                f"{{{name}: {{kind: in_batch_softmax}}}}, which takes other items of a batch as negatives"
            )
        elif ends[0] == ends[1] and isinstance(loss, Pairwise | Bpr):
            yield (
                f"label {name} is {ends[0]:g} in all training rows, and train.losses.{name}.kind={loss.kind} compares "
                "positive rows with negative ones; add the other rows"
            )
        elif ends == (0.0, 0.0) and (
            isinstance(loss, InBatchSoftmax) or (isinstance(loss, SampledSoftmax) and loss.positions == "last")
        ):
            yield (
                f"label {name} is 0 in all training rows, and train.losses.{name}.kind={loss.kind} learns from "
                "positive ones; correct dataset.labels"
            )


def _of_evaluation(run: Run, rows: int, found: "LabelEnds", trains: bool) -> Iterator[str]:
    if not found.has_weight:
        yield _without_weight(run, f"{rows:,} evaluation")
    elif trains:
        for key, metric in run.judging_metrics.items():
            yield from _of_metric(f"{key}={metric}", metric, found)


def _of_metric(key: str, metric: str, found: "LabelEnds") -> Iterator[str]:
    """Yield the reason why a metric, which a key names, is undefined for the evaluation rows, if it is."""
    names = list(found.ends)
    if is_of_retrieval(metric):
        yield from _of_label(key, "pr_auc", names[0], found.ends[names[0]])
    if metric == AUC and len(names) > 1:  # its mean over labels
        for name in names:
            yield from _of_label(key, AUC, name, found.ends[name])
    for base in (*_TWO_CLASSES, "pr_auc", "calibration", "r2"):
        if metric in (keys := keys_of(base, names)):
            name = names[keys.index(metric)]
            yield from _of_label(key, base, name, found.ends[name])


def _of_label(key: str, base: str, label: str, ends: tuple[float, float] | None) -> Iterator[str]:
    """Yield the reason why the metric of a label is undefined for the evaluation rows, if it is."""
    value = "null" if ends is None else f"{ends[0]:g}"
    instead, needs = ", or choose log_loss or loss", None
    if ends is None:
        needs, instead = "rows that have the label", ""
    elif base in _TWO_CLASSES and ends in ((0.0, 0.0), (1.0, 1.0)):
        needs = "rows of both classes"
    elif base in ("pr_auc", "calibration") and ends[1] == 0.0:
        needs = "rows with a label above 0"
    elif base == "r2" and ends[0] == ends[1]:
        needs, instead = "rows with different labels", ", or choose rmse or loss"
    if needs:
        state = f"label {label} is {value} in all evaluation rows"
        yield f"{key} needs {needs}, and {state}; correct dataset.split{instead}"


def _without_weight(run: Run, samples: str) -> str:
    column = getattr(run.dataset, "weight", None)
    return (
        f"all {samples} samples weigh 0 in column {column}, which dataset.weight names; correct it, or leave "
        "dataset.weight out"
    )


def with_base_rate(run: Run) -> Run:
    """Return the run with numbers in place of `model.output_bias=base_rate`: the outputs that predict labels' means.

    The means are over the training rows, by their weights if they have any. Their labels are read for it once per
    training, whose configuration then has the numbers. Raise DataError if no output predicts a mean, and ConfigError
    for a network without such a bias.
    """
    if run.model.output_bias != "base_rate":
        return run
    require_fit(run.model, input_shape(run, embedding_layout(run)))
    from persia_cli.data.read.label_values import label_means  # needs pyarrow

    means = label_means(run.dataset, run.seed, run.links, isinstance(run.model, Esmm))
    outputs = []
    for (name, link), mean in zip(run.links.items(), means, strict=True):
        if mean is None:
            raise DataError(
                f"model.output_bias=base_rate: label {name} is null, or the weight 0, in all training rows, so it has "
                "no base rate; correct the data, or leave model.output_bias out"
            )
        try:
            outputs.append(_OUTPUTS[link](mean))
        except ValueError:
            raise DataError(
                f"model.output_bias=base_rate: label {name} is {mean:g} in all training rows, which no network "
                "predicts; correct the label, or leave model.output_bias out"
            ) from None
    return run.model_copy(update={"model": run.model.model_copy(update={"output_bias": tuple(outputs)})})
