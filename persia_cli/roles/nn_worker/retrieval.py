"""Retrieval metrics during a job, by one rank: it reads rows of embedding servers, and changes none."""

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.retrieval.evaluation import answer_of, ranking_metrics
from persia_cli.retrieval.question import Progress, Question, ask
from persia_cli.retrieval.towers import Towers
from persia_cli.roles.nn_worker.pipeline import Pipeline
from persia_cli.roles.session import Work
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.distributed import World
from persia_cli.wire.messages import GroupRows


class RetrievalOfRows:
    """The ranking of all items for each user by the present model; for the training thread.

    The data are read once, before the first metrics. Of them, a sample of each item and of each user stays in memory,
    and the items of each user.
    """

    def __init__(
        self, run: Run, lengths: tuple[int, ...], trainer: DenseTrainer, world: World, pipeline: Pipeline, work: Work
    ) -> None:
        self._run, self._lengths, self._pipeline, self._work = run, lengths, pipeline, work
        self._towers = Towers(run, trainer.network, world.device, self._rows_of)
        self._question: Question | None = None
        self._step = 0

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics by their keys in `metrics.jsonl`; `step` is any of the evaluation.

        Raise the errors of `ask` and `answer_of`, and JobEndedError.
        """
        self._step = step
        if self._question is None:
            self._question = ask(self._run, None, self._beginning("reading all items"), self._run.eval.users)
        answer = answer_of(self._question, self._towers.vectors, self._beginning("computing vectors of all items"))
        found = ranking_metrics(self._question, answer, self._lengths, self._beginning("ranking all items"))
        self._work.end()
        return found

    def _rows_of(self, batch: Batch) -> list[GroupRows]:
        return self._pipeline.rows(self._step, batch.size, batch.ids, batch.offsets)

    def _beginning(self, what: str) -> Progress:
        """Return a function that begins a piece of this work, unless the job is over."""

        def begin() -> None:
            self._pipeline.check()
            self._work.begin(what)

        return begin
