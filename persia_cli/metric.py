"""The metrics that models are compared by: their keys in `metrics.jsonl`, and the direction in which they improve."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

Link = Literal["logistic", "identity", "exp"]
"""The function that makes a prediction of the network's output: a probability, the number itself, or a number above 0.

It also decides which labels there are: from 0 to 1, any finite ones, or those that are not negative.
"""

Aim = Literal["high", "low", "one"]
"""The better values of a metric: high ones, low ones, or those close to 1."""

AIMS: dict[str, Aim] = {
    "auc": "high",
    "gauc": "high",
    "pr_auc": "high",
    "accuracy": "high",
    "log_loss": "low",
    "ne": "low",
    "calibration": "one",
    "rmse": "low",
    "mae": "low",
    "r2": "high",
}
"""Every metric of a label; `gauc` only with `dataset.group_by`."""

AUC = "auc"
"""With several labels, the mean of their AUC, by which evaluations decide; those of the labels alone are recorded."""

FIGURES: dict[Link, tuple[str, ...]] = {
    "logistic": ("auc", "gauc", "pr_auc", "accuracy", "log_loss", "ne", "calibration"),
    "identity": ("rmse", "mae", "r2"),
    "exp": ("rmse", "mae", "r2", "calibration"),
}
"""The metrics of a label by what its loss predicts: a probability, a number, or a number above 0."""

HEADLINES: dict[Link, tuple[str, ...]] = {
    "logistic": ("auc", "log_loss", "calibration"),
    "identity": ("rmse", "mae", "r2"),
    "exp": ("rmse", "mae", "calibration"),
}
"""The metrics of a label that are shown where space is limited.

Models are judged by the first one unless another is asked for.
"""


def keys_of(figure: str, labels: Sequence[str]) -> list[str]:
    """Return the key of a metric for each label; with several labels it ends in the label's name."""
    return [figure] if len(labels) == 1 else [f"{figure}_{label}" for label in labels]


def metrics_of(links: Mapping[str, Link], queries: bool, cuts: Sequence[int] = ()) -> dict[str, Aim]:
    """Return every metric of an evaluation, and its aim.

    `links` has every label, `queries` is True if samples have query ids, `cuts` are those of retrieval metrics.
    """
    found: dict[str, Aim] = {}
    for figure, aim in AIMS.items():
        for (_, link), key in zip(links.items(), keys_of(figure, list(links)), strict=True):
            if figure in FIGURES[link] and (queries or figure != "gauc"):
                found[key] = aim
    if "logistic" in links.values():
        found[AUC] = "high"
    return found | {"loss": "low"} | dict.fromkeys(retrieval_keys(cuts), "high")


def value_of(figures: Mapping[str, float | None], metric: str) -> float | None:
    """Return a metric of an evaluation by its values, None if it is not defined; raises KeyError if there is none."""
    if metric != AUC or AUC in figures:
        return figures[metric]
    values = [value for key, value in figures.items() if key.startswith(f"{AUC}_")]
    if not values:
        raise KeyError(metric)
    defined = [value for value in values if value is not None]
    return fmean(defined) if len(defined) == len(values) else None


def retrieval_keys(cuts: Sequence[int]) -> list[str]:
    """Return the keys of the retrieval metrics with lists of these lengths; none without a length."""
    return [f"{figure}@{k}" for k in cuts for figure in ("recall", "ndcg", "hr")] + ["mrr"] * bool(cuts)


def headlines(links: Mapping[str, Link]) -> tuple[str, ...]:
    """Return the metrics that runs with these labels are compared by; the first is AUC if a label has one, or RMSE."""
    kinds = list(links.values())
    return HEADLINES["logistic" if "logistic" in kinds else kinds[0]][:2]


def aim_of(metric: str) -> Aim:
    """Return the better values of a metric, by its key, which may end in a label's name."""
    if is_of_retrieval(metric):
        return "high"
    return next((aim for figure, aim in AIMS.items() if metric == figure or metric.startswith(f"{figure}_")), "low")


def goodness(aim: Aim, value: float) -> float:
    """Return a number that is higher for better values."""
    return {"high": value, "low": -value, "one": -abs(value - 1.0)}[aim]


def is_of_retrieval(metric: str) -> bool:
    """Return True for a retrieval metric, as `persia eval --retrieval` and `eval.retrieval` compute them."""
    return re.fullmatch(r"(recall|ndcg|hr)@[0-9]+|mrr", metric) is not None
