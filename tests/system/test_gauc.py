"""GAUC of a job: exact, whatever steps, portions, loaders and ranks the samples of a group are spread over."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.job import JobResult
from persia_cli.plan.job import plan_job
from persia_cli.roles.nn_worker import worker as nn_worker
from persia_cli.roles.nn_worker.interval import Interval
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.jobs import evaluation, launch, train

ROWS, USERS = 1200, 40


@pytest.fixture
def visits(tmp_path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Samples of some users, in one shop."""
    draw = np.random.default_rng(1)
    user, item = draw.integers(0, USERS, ROWS), draw.integers(0, 30, ROWS)
    label = (draw.random(ROWS) < 0.2 + 0.6 * (item % 2)).astype(np.float32)
    columns = {"user": user, "item": item, "y": label, "shop": np.full(ROWS, "corner")}
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet", row_group_size=250)
    return columns


def words(tmp_path: Path, group_by: str) -> list[str]:
    return [
        "dataset=parquet",
        f"dataset.path={tmp_path / 'visits.parquet'}",
        "dataset.labels=[y]",
        "dataset.sparse=[item]",
        "dataset.split={kind: every, n: 2}",
        f"dataset.group_by={group_by}",
        "model.hidden=[8]",
        "model.dim=4",
        "mode=sync",
        "train.batch_size=32",
        "train.epochs=1",
        "embedding.capacity=4096",
    ]


def test_it_is_that_of_every_group(tmp_path: Path, visits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any, Any]] = []
    add = Interval.add

    def spy(interval: Interval, samples: Any, scored: Any, rows: Any) -> None:
        if samples.query_ids is not None:
            seen.append((samples.query_ids.copy(), scored.logits[:, 0].copy(), samples.labels[:, 0].copy()))
        add(interval, samples, scored, rows)

    monkeypatch.setattr(Interval, "add", spy)
    monkeypatch.setattr(nn_worker, "PORTION", 100)
    result = train([*words(tmp_path, "user"), "cluster=embedded"], tmp_path / "run")
    users, logits, labels = (np.concatenate(each) for each in zip(*seen, strict=True))
    assert users.tolist() == visits["user"][::2].tolist(), "evaluation is in the order of rows, and so are the groups"
    figures, sizes = [], []
    for user in range(USERS):
        z, y = torch.from_numpy(logits[users == user]), torch.from_numpy(labels[users == user])
        if 0 < y.sum() < len(y):
            figures.append(float(binary_auroc(z.double().sigmoid(), y.long())))
            sizes.append(len(y))
    line = evaluation(result)
    assert line["gauc"] == pytest.approx(np.average(figures, weights=sizes), abs=1e-6)
    assert (line["eval_samples"], line["step"]) == (ROWS // 2, 19)
    assert not any("gauc" in key for each in result.metrics if each["split"] == "train" for key in each)


def test_one_group_of_all_has_the_auc_of_all(tmp_path: Path, visits: Any) -> None:
    line = evaluation(train([*words(tmp_path, "shop"), "cluster=embedded"], tmp_path / "run"))
    assert line["gauc"] == pytest.approx(line["auc"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.processes
def test_it_is_the_same_over_ranks_and_loaders(tmp_path: Path, visits: Any) -> None:
    trained = train([*words(tmp_path, "user"), "cluster=embedded"], tmp_path / "run")

    def evaluated(name: str, *cluster: str) -> JobResult:
        run = compose_run([*words(tmp_path, "user"), *cluster])
        plan = plan_job(
            run, inspect(run.dataset), "evaluate", tmp_path / name, newest_checkpoint(trained.run_dir / CHECKPOINTS)
        )
        return launch(plan)

    two = evaluation(evaluated("two", "cluster=local", "cluster.nn_workers=2", "cluster.data_loaders=2"))
    assert two["gauc"] == pytest.approx(evaluation(trained)["gauc"], abs=1e-9)
