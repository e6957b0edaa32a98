"""Processes that are killed while an evaluation ranks items: its metrics are those of an undisturbed one."""

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from persia_cli.engines.job import result_of
from tests.conftest import poll_for
from tests.support.jobs import train
from tests.support.launched import Launched
from tests.system.test_recovery import events_of
from tests.system.test_retrieval import MODEL
from tests.system.test_retrieval_in_training import of_retrieval

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400)]
LIMIT_S = 150.0
TRAIN_ROWS, EVAL_ROWS = 300_000, 100
"""Few are scored, in one step, and many are read before the items are ranked: it is then that a process dies."""


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a job of a few steps on many samples."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(6)
    for name, rows in (("train", TRAIN_ROWS), ("eval", EVAL_ROWS)):
        user, item = draw.integers(0, 500, rows), draw.integers(0, 2000, rows)
        table = {"user": user, "age": user % 4, "item": item, "tags": item % 3, "label": (user + item) % 3 == 0}
        pd.DataFrame(table).astype({"label": float}).to_parquet(folder / f"{name}.parquet", row_group_size=50_000)
    return [
        *("conf=base", "name=small", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[label]"),
        *("dataset.sparse=[user, age, item, tags]", "dataset.dense=[]", "dataset.group_by=user", "mode=sync"),
        *("dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}", "optimizer=adagrad", *MODEL),
        *("train.batch_size=128", "train.steps=4", "train.log_every_steps=1", "embedding.memory=16MiB"),
        *("eval.retrieval=[10]"),
    ]


@pytest.mark.parametrize("replica", ["embedding-worker-0", "embedding-server-0", "nn-worker-0"])
def test_metrics_are_those_of_an_undisturbed_evaluation(replica: str, words: list[str], tmp_path: Path) -> None:
    undisturbed = train([*words, "cluster=embedded"], tmp_path / "undisturbed")
    with Launched([*words, "cluster=local"], tmp_path / "run") as job:
        poll_for(
            lambda: "evaluating" in [event["phase"] for event in events_of(job, "phase")] or job.process.poll(),
            LIMIT_S,
            "the evaluation",
        )
        os.kill(job.pids()[replica], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
    result = result_of(tmp_path / "run")
    assert [event["replica"] for event in result.events if event["event"] == "recovered"] == [replica]
    found, expected = (
        [of_retrieval(line) for line in each.metrics if line["split"] == "eval"] for each in (result, undisturbed)
    )
    assert len(found) == 1
    assert found == expected
