"""Learning rates that evaluations reduce: the steps of plain torch, also after a resumption or a death."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.engines.job import JobResult
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, newest_checkpoint, read_manifest
from tests.support import small
from tests.support.checkpoints import assert_same_model, read_rows
from tests.support.jobs import CRITEO_FFNN, launch, losses, plan, train
from tests.support.oracle import Oracle
from tests.system.test_recovery import assert_same, train_and_kill
from tests.system.test_resume import WORDS, lines

NEVER = "train.stop_early={metric: auc, patience: 100, min_delta: 2}"
"""No evaluation is better than the first by so much, so that each later one is a plateau."""
DENSE = "optimizer.dense.schedule={kind: reduce_on_plateau, factor: 0.5}"
ROWS = "optimizer.embedding.schedule={kind: reduce_on_plateau, factor: 0.25, floor: 0.1}"
LIMIT_S = 400


def notes(result: JobResult) -> list[str]:
    return [event["text"] for event in result.events if event["event"] == "note" and "learning rate" in event["text"]]


def test_every_step_has_the_rate_that_evaluations_have_left(criteo_rows: Path, tmp_path: Path) -> None:
    """Evaluations after steps 2, 4, … 12: the first is the best, so dense rates fall at 4, 6, 8 and 10.

    Those of rows fall at 4 and 6, to no less than `floor` of the first.
    """
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "cluster=embedded", "mode=sync", "optimizer=adam", "seed=1"]
    words += ["optimizer.dense={lr: 0.02, eps: 1e-3}", "optimizer.embedding={lr: 0.01, eps: 1e-3}", NEVER, DENSE, ROWS]
    words += ["train.log_every_steps=1", "train.steps=12", "train.batch_size=64"]
    job = plan([*words, "eval.every_steps=2", "checkpoint.at_end=false"], tmp_path / "run")
    result = launch(job)
    oracle = Oracle(job.run, 12)
    theirs = []
    for step in range(12):
        dense = 0.02 * 0.5 ** max(0, step // 2 - 1)
        rows = 0.01 if step < 4 else 0.0025 if step < 6 else 0.001
        for optimizers, rate in (
            ([oracle.optimizer], dense),
            ([table.optimizer for table in oracle.tables.values()], rows),
        ):
            for each in optimizers:
                for group in each.param_groups:
                    group["lr"] = rate
        theirs.append(oracle.step(step))
    np.testing.assert_allclose(losses(result), theirs, rtol=0, atol=2e-6)
    fallen = [text.partition(":")[0] for text in notes(result)]
    assert fallen.count("optimizer.dense") == 4
    assert fallen.count("optimizer.embedding") == 2


def test_a_resumed_run_goes_on_with_the_reduced_rate(tmp_path: Path) -> None:
    """The run of `test_resume`, killed after its checkpoint of step 50; evaluations of step 30 and 45 were plateaus."""
    words = [*(word for word in WORDS if "schedule" not in word), NEVER, DENSE, ROWS]
    straight = train(words, tmp_path / "straight")
    run_dir = tmp_path / "run"
    shutil.copytree(straight.run_dir, run_dir)
    shutil.rmtree(checkpoint_folder(run_dir / CHECKPOINTS, 60))
    saved = read_manifest(checkpoint_folder(run_dir / CHECKPOINTS, 50)).progress.plateaus
    assert [(each.of, each.reductions, each.best.step, each.best.since) for each in saved] == [
        ("dense", 2, 15, 2),
        ("embedding", 2, 15, 2),
    ]
    ended = CliRunner().invoke(app, ["resume", str(run_dir)])
    assert ended.exit_code == 0, ended.output
    assert lines(run_dir) == lines(straight.run_dir)
    ours, theirs = (newest_checkpoint(each / CHECKPOINTS) for each in (run_dir, straight.run_dir))
    assert_same_model(ours, theirs)


RANKS = [*small.WORDS, "train.log_every_steps=5", "cluster=local", NEVER, DENSE, ROWS]
RANKS += ["cluster.embedding_servers=2", "eval.every_steps=40"]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_who_takes_the_place_of_a_killed_process_has_the_reduced_rate(tmp_path: Path) -> None:
    alone = [*RANKS, "cluster=embedded"]
    undisturbed = train(alone, tmp_path / "undisturbed")
    constant = train([word for word in alone if "schedule" not in word], tmp_path / "constant")
    assert losses(constant) != losses(undisturbed)
    result = train_and_kill(RANKS, tmp_path / "run", 130, "embedding-server-1")
    assert notes(result) == notes(undisturbed) != []
    assert_same(result, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("mode", [["mode=hybrid", "mode.staleness=4"], ["mode=async"]], ids="/".join)
def test_all_updates_of_several_ranks_have_it(mode: list[str], tmp_path: Path) -> None:
    """Once the rate of rows is 0 to all purposes they stand still: that of 1e-30 after the first plateau."""
    still = "optimizer.embedding.schedule={kind: reduce_on_plateau, factor: 1e-30, floor: 0}"
    words = [
        *small.WORDS,
        *mode,
        "optimizer=sgd",
        still,
        NEVER,
        "cluster=local",
        "cluster.nn_workers=2",
        "eval.every_steps=100",
    ]
    words += ["cluster.embedding_workers=2", "cluster.embedding_servers=2", "checkpoint.every_steps=100"]
    words += ["dataset.generator.cardinalities=[20, 30]"]
    result = train(words, tmp_path / "run")
    folders = [checkpoint_folder(result.run_dir / CHECKPOINTS, step) for step in (100, 200, 300)]
    first, second, third = (rows_of(folder) for folder in folders)
    assert not all(np.array_equal(first[name], second[name]) for name in first)
    assert all(np.array_equal(second[name], third[name]) for name in first)


def rows_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """The rows of a checkpoint by table of features, in the order of their ids."""
    saved = read_rows(checkpoint)
    return {name: rows.embedding[np.argsort(rows.ids)] for name, rows in saved.items() if name != DENSE_TABLE}
