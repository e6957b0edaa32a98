"""Lines of metrics: steps that another thread finishes are reported by the training thread, each once."""

import threading

import numpy as np

from persia_cli.control.position import TRAIN
from persia_cli.metric import Link
from persia_cli.roles.nn_worker.interval import Interval, MetricLines
from persia_cli.roles.nn_worker.pipeline import ReadyBatch
from persia_cli.training.inputs import Samples
from persia_cli.training.step import Scored
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import PutSamples, Rows

LINKS: tuple[Link, ...] = ("logistic",)


def test_the_training_thread_reports_what_another_finishes() -> None:
    reported: list[tuple[int, int, int]] = []

    def report(split: int, last: int, interval: Interval, seconds: float) -> None:
        assert split == TRAIN
        reported.append((last, interval.report("train", last, seconds, False)[0].steps, threading.get_ident()))

    lines = MetricLines(LINKS, 2, 0, report)

    def finish(steps: range) -> None:
        dense, labels = np.zeros((3, 0), np.float32), np.ones((3, 1), np.float32)
        for step in steps:
            came = PutSamples(BatchId(TRAIN, step, 0), 0.0, np.full(1, 3.0), dense, labels, None, None, None, None)
            scored = Scored(np.zeros((3, 1), np.float32), np.zeros(1))
            lines.add(ReadyBatch(came, Rows(0, (), 0, 0, [])), Samples(dense, labels, None, [3.0]), scored)

    def on_another_thread(steps: range) -> None:
        thread = threading.Thread(target=finish, args=(steps,))
        thread.start()
        thread.join()

    on_another_thread(range(4))
    assert reported == []
    lines.send()
    on_another_thread(range(4, 5))
    lines.send()
    lines.end()
    lines.end()
    mine = threading.get_ident()
    assert reported == [(2, 2, mine), (4, 2, mine), (5, 1, mine)]
