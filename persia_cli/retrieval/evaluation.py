"""A model judged by retrieval: each query's items among all items of the data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.errors import UserError
from persia_cli.plan.network import require_two_sides
from persia_cli.retrieval.approximate import ApproximateFigures, require_faiss, search
from persia_cli.retrieval.question import SAMPLES, Progress, Question, ask
from persia_cli.retrieval.ranking import Floats, figures_of, ranks_of
from persia_cli.retrieval.towers import Vectors, saved_towers
from persia_cli.storage.places import Place


@dataclass(frozen=True, slots=True)
class RetrievalFigures:
    """The figures of a model and of ranking by popularity alone, over so many queries and items."""

    model: dict[str, float]
    popularity: dict[str, float]
    queries: int
    items: int
    relevant: int
    approximate: ApproximateFigures | None = None


class Answer(NamedTuple):
    """What a model knows queries and items by: vectors float32 [queries, width] and [items, width]."""

    users: Floats
    items: Floats


def judge(
    run: Run, checkpoint: Place, cuts: Sequence[int], keep_seen: bool = False, approximate: bool = False
) -> RetrievalFigures:
    """Rank all items of both splits for each query of the evaluation split, by the saved network and by popularity.

    Raises ConfigError for a network without two sides, DataError without a positive evaluation sample, UserError if the
    library is missing that searches `approximate`ly too.
    """
    if approximate:
        require_faiss()
    require_two_sides(run, "--retrieval")
    question = ask(run, keep_seen)
    users, items = answer = answer_of(question, saved_towers(run, checkpoint).vectors)
    popular = Answer(np.ones((len(users), 1), np.float32), question.popularity.astype(np.float32)[:, None])
    return RetrievalFigures(
        figures(question, answer, cuts),
        figures(question, popular, cuts),
        len(users),
        len(items),
        len(question.relevant.queries),
        search(users, items, question.relevant, question.seen, cuts) if approximate else None,
    )


def answer_of(question: Question, vectors: Callable[[Batch], Vectors], progress: Progress = lambda: None) -> Answer:
    """Compute the vectors of all queries and items, always in the same batches, so that equal models give equal bits.

    Raises UserError if they are not finite: nothing can be ranked by them.
    """

    def whole(samples: Batch, side: int) -> Floats:
        parts = []
        for start in range(0, samples.size, SAMPLES):
            progress()
            parts.append(vectors(samples.rows(start, min(start + SAMPLES, samples.size)))[side])
        return np.concatenate(parts)

    answer = Answer(whole(question.users, 0), whole(question.items, 1))
    if not all(np.isfinite(each).all() for each in answer):
        raise UserError("vectors of the model are not finite, so that no items can be ranked; lower learning rates")
    return answer


def figures(
    question: Question, answer: Answer, cuts: Sequence[int], progress: Progress = lambda: None
) -> dict[str, float]:
    """Return the figures of ranking all items for each query by the products of their vectors."""

    def scores(first: int, last: int) -> Floats:
        progress()
        return answer.users[first:last] @ answer.items.T

    ranks = ranks_of(scores, question.relevant, question.seen, *map(len, answer))
    return figures_of(ranks, question.relevant, cuts)
