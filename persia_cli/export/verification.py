"""The verification of an export: the same samples scored by the training code and by the exported model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.control.position import SplitName
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.predictions import predictions
from persia_cli.data.read.source import open_source
from persia_cli.errors import PersiaError
from persia_cli.export.saved_network import SavedNetwork
from persia_cli.metric import Link
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.columns import label_names
from persia_cli.serving.description import Form
from persia_cli.serving.golden import DIFFERENCE
from persia_cli.serving.predictor import Predictor

PORTION = 2**18
"""Number of ids of the samples for which the checkpoint's rows are read at once."""
LARGEST_PORTION = 2**16
"""Largest number of samples of a portion."""
AUC: dict[Form, float] = {"float32": 1e-5, "bfloat16": 1e-4, "float16": 1e-4, "int8": 2e-4, "int4": 1e-3}
"""Maximum difference of AUC to that of the training code, if there are enough samples."""
GRAIN = 2.0**-16
"""Logits that round to the same multiple of it are equal for AUC.

Scores of alike samples differ only by the rounding of sums, which depends on their place in a batch. Their order is
no property of the model, and differs between ways of scoring.
"""
PAIRS = 4
"""Pairs of a positive and a negative sample whose order may differ: with few samples, each is much of AUC."""


@dataclass(frozen=True, slots=True)
class LabelProof:
    """The differences of two ways of scoring for a label: the largest difference of predictions, and AUC by each."""

    label: str
    difference: float
    auc: tuple[float, float] | None
    """By the training code and by the exported model; None for a number, and if all samples are of one class."""
    pairs: float
    """Number of pairs of a positive and a negative sample."""

    def allowed(self, form: Form) -> float:
        """Return the maximum difference of AUC to that of the training code."""
        return max(AUC[form], PAIRS / self.pairs)


@dataclass(frozen=True, slots=True)
class Proof:
    """The comparison of two ways of scoring."""

    samples: int
    labels: list[LabelProof]

    def require(self, form: Form) -> None:
        """Raise PersiaError if a difference exceeds its bound."""
        for each in self.labels:
            if not each.difference <= DIFFERENCE[form]:
                raise PersiaError(
                    f"predictions of {each.label} differ by up to {each.difference:.3g} from those of the training "
                    f"code, and {DIFFERENCE[form]:.0e} is allowed for rows in {form}; use --rows float32 if fewer bits "
                    "cost too much, else do not serve this export"
                )
            if each.auc is not None and abs(each.auc[1] - each.auc[0]) > each.allowed(form):
                remedy = "do not serve this export" if form == "float32" else "use --rows with more bits"
                raise PersiaError(
                    f"AUC of {each.label} is {each.auc[1]:.6f} and {each.auc[0]:.6f} by the training code, and these "
                    f"may differ by {each.allowed(form):.0e} for rows in {form}; {remedy}"
                )


def portions(run: Run, split: SplitName, samples: int | None = None) -> Iterator[Batch]:
    """Yield at most `samples` samples of a split in portions whose rows fit in memory."""
    source = open_source(run.dataset, split, run.seed, run.links)
    try:
        end = source.rows if samples is None else min(source.rows, samples)
        start, size = 0, min(end, 1024)
        while start < end:
            batch = source.read(0, start, min(start + size, end))
            yield batch
            start += batch.size
            size = max(1, min(LARGEST_PORTION, PORTION * batch.size // max(1, batch.ids.size)))
    finally:
        source.close()


def compare(
    run: Run,
    network: SavedNetwork,
    folder: Path,
    split: SplitName = "eval",
    samples: int | None = None,
    on_samples: Callable[[int], None] = lambda samples: None,
) -> Proof:
    """Score the samples of a run's split by the training code and by the model in `folder`."""
    predictor, names = Predictor.open(folder, missing="zeros"), label_names(run)
    links: list[Link] = [output.link for output in predictor.description.outputs]
    scores = [ScoreHistogram(len(names), links=links) for _ in range(2)]
    worst, positives, known = (np.zeros(len(names)) for _ in range(3))
    count = 0
    for batch in portions(run, split, samples):
        both = network.logits(batch), predictor.predict(batch).logits
        for histogram, logits in zip(scores, both, strict=True):
            histogram.add(np.rint(logits.astype(np.float64) / GRAIN) * GRAIN, batch.labels, batch.weights)
        worst = np.maximum(worst, _differences(*both, links))
        positives += np.nansum(batch.labels, 0, dtype=np.float64)
        known += np.count_nonzero(~np.isnan(batch.labels), axis=0)
        count += batch.size
        on_samples(count)
    found = []
    for task, (name, link) in enumerate(zip(names, links, strict=True)):
        aucs = [each.auc(task) if link == "logistic" else None for each in scores]
        auc = None if aucs[0] is None or aucs[1] is None else (aucs[0], aucs[1])
        pairs = float(positives[task] * (known[task] - positives[task]))
        found.append(LabelProof(name, float(worst[task]), auc, pairs))
    return Proof(count, found)


def _differences(one: NDArray[np.float32], other: NDArray[np.float32], links: list[Link]) -> NDArray[np.float64]:
    """Return the largest difference of each label's predictions; of those above 1, relative to their size."""
    found = []
    for task, link in enumerate(links):
        p, q = (predictions(each[:, task].astype(np.float64), link) for each in (one, other))
        found.append(float((np.abs(p - q) / np.maximum(1.0, np.abs(p))).max(initial=0.0)))
    return np.array(found)
