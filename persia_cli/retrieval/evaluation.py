"""A model judged by retrieval: each query's items among all items of the data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.errors import UserError
from persia_cli.plan.checks import require_two_sides
from persia_cli.retrieval.approximate import ApproximateMetrics, require_faiss, search
from persia_cli.retrieval.question import SAMPLES, Progress, Question, ask
from persia_cli.retrieval.ranking import Floats, ranks_of, retrieval_metrics
from persia_cli.retrieval.towers import saved_towers
from persia_cli.storage.locations import Location

Side = Callable[[Batch], Floats]
"""A function that returns the vectors of users, or of items, of a batch."""


@dataclass(frozen=True, slots=True)
class RetrievalMetrics:
    """The metrics of a model and of ranking by popularity alone, over so many queries and items."""

    model: dict[str, float]
    popularity: dict[str, float]
    queries: int
    items: int
    relevant: int
    seen_share: float
    """Fraction of all relevant pairs that are in the training split too. They count only with `keep_seen`."""
    approximate: ApproximateMetrics | None = None


class Answer(NamedTuple):
    """The model's vectors of queries and items: float32 [queries, width] and [items, width]."""

    users: Floats
    items: Floats


def judge(
    run: Run, checkpoint: Location, cuts: Sequence[int], keep_seen: bool = False, approximate: bool = False
) -> RetrievalMetrics:
    """Rank all items of both splits for each query of the evaluation split, by the saved network and by popularity.

    Raise ConfigError for a network without two towers, DataError without a positive evaluation sample, UserError if the
    library for `approximate` search is missing.
    """
    if approximate:
        require_faiss()
    require_two_sides(run, "--retrieval")
    question = ask(run, keep_seen)
    towers = saved_towers(run, checkpoint)
    users, items = answer = answer_of(question, towers.users, towers.items)
    popular = Answer(np.ones((len(users), 1), np.float32), question.popularity.astype(np.float32)[:, None])
    return RetrievalMetrics(
        ranking_metrics(question, answer, cuts),
        ranking_metrics(question, popular, cuts),
        len(users),
        len(items),
        len(question.relevant.queries),
        question.seen_share,
        search(users, items, question.relevant, question.hidden, cuts) if approximate else None,
    )


def answer_of(question: Question, users: Side, items: Side, progress: Progress = lambda: None) -> Answer:
    """Compute the vectors of all queries and items, always in the same batches, so that equal models give equal bits.

    Raise UserError if they are not finite: nothing can be ranked by them.
    """
    return Answer(vectors_of(question.users, users, progress), vectors_of(question.items, items, progress))


def vectors_of(samples: Batch, side: Side, progress: Progress = lambda: None) -> Floats:
    """Compute the vectors of one side of samples; raises UserError if they are not finite."""
    parts = []
    for start in range(0, samples.size, SAMPLES):
        progress()
        parts.append(side(samples.rows(start, min(start + SAMPLES, samples.size))))
        if not np.isfinite(parts[-1]).all():
            raise UserError("vectors of the model are not finite, so that no items can be ranked; lower learning rates")
    return np.concatenate(parts)


def ranking_metrics(
    question: Question, answer: Answer, cuts: Sequence[int], progress: Progress = lambda: None
) -> dict[str, float]:
    """Return the metrics of ranking all items for each query by the products of their vectors."""

    def scores(first: int, last: int) -> Floats:
        progress()
        return answer.users[first:last] @ answer.items.T

    ranks = ranks_of(scores, question.relevant, question.hidden, *map(len, answer))
    return retrieval_metrics(ranks, question.relevant, cuts)
