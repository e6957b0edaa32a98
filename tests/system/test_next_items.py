"""Training on all positions of sequences, on made-up data of Amazon Beauty's shape with a planted rule."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from persia_cli.engines.job import JobResult, result_of
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, newest_checkpoint
from tests.support.checkpoints import assert_same_model, read_rows
from tests.support.jobs import train
from tests.support.launched import Launched
from tests.support.prepared import prepare
from tests.system.test_kills import CLUSTER, LIMIT_S, MANY, dense_of, kill_all, metrics_of
from tests.system.test_recovery import rows_of

ITEMS, USERS = 1200, 2500
"""As many users and items, in proportion, as Beauty has; a user has 8.9 items."""


def histories(folder: Path, seed: int = 0) -> Path:
    """Prepare users whose next item is 7 i + 3 mod ITEMS after i with probability 0.8, else any."""
    draw = np.random.default_rng(seed)
    lines = []
    for user in range(USERS):
        items = [int(draw.integers(ITEMS))]
        for _ in range(4 + int(draw.exponential(3.9) + 0.5)):
            by_rule = draw.random() < 0.8
            items.append((7 * items[-1] + 3) % ITEMS if by_rule else int(draw.integers(ITEMS)))
        lines.append(" ".join(map(str, [user, *items])))
    (folder / "users.txt").write_text("\n".join(lines))
    prepare("next_item", folder / "users.txt", folder / "data")
    return folder / "data"


def words(data: Path, *more: str) -> list[str]:
    return ["conf=beauty", f"dataset.path='{data}'", "cluster=embedded", "train.log_every_steps=1", *more]


def recall(result: JobResult) -> float:
    """The recall@10 of the last evaluation, among all items but those of the user's own list."""
    [*_, last] = [line for line in result.metrics if line["split"] == "eval"]
    return float(last["recall@10"])


@pytest.mark.timeout(300)
def test_a_planted_rule_of_next_items_is_learned(tmp_path: Path) -> None:
    """Ten epochs; chance has 10 / 1,200, and the rule 0.8."""
    data = histories(tmp_path)
    result = train(words(data, "train.epochs=10", "eval.every_epochs=10", "model.dropout=0.2"), tmp_path / "run")
    assert recall(result) > 0.5


SYNC = ("mode=sync", "train.steps=24", "train.epochs=3", "checkpoint.every_steps=8", "eval.every_epochs=null",
        "eval.retrieval=null", "train.losses={label: {kind: sampled_softmax, negatives: 100}}")  # fmt: skip
LAYOUTS: dict[str, list[str]] = {
    "again": [],
    "others": ["cluster.data_loaders=3", "cluster.embedding_workers=2", "cluster.embedding_servers=3"],
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JobResult]:
    """The data, and an undisturbed job."""
    folder = tmp_path_factory.mktemp("sequences")
    data = histories(folder)
    return data, train(words(data, *SYNC), folder / "run")


@pytest.mark.parametrize("replicas", LAYOUTS.values(), ids=LAYOUTS)
def test_a_resumed_job_on_any_replicas_has_the_bits_of_an_undisturbed_one(
    replicas: list[str], straight: tuple[Path, JobResult], tmp_path: Path
) -> None:
    _, whole = straight
    shutil.copytree(whole.run_dir, tmp_path / "run")
    for step in (16, 24):
        shutil.rmtree(checkpoint_folder(tmp_path / "run" / CHECKPOINTS, step))
    ended = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), *replicas])
    assert ended.exit_code == 0, ended.output
    assert_same_model(newest_checkpoint(tmp_path / "run" / CHECKPOINTS), newest_checkpoint(whole.run_dir / CHECKPOINTS))


@pytest.mark.parametrize(
    ("settings", "evicts"),
    [("embedding.capacity=256", True), ("embedding.tables.item.admission={min_count: 2}", False)],
    ids=["evicted", "admitted"],
)
def test_negatives_neither_create_rows_nor_count_as_uses(
    settings: str, evicts: bool, straight: tuple[Path, JobResult], tmp_path: Path
) -> None:
    """With one negative a step and with all items as negatives, the same ones have rows after steps of a few users.

    Most items are in no step, or were evicted, or came once, which is too rare for a row.
    """
    found = []
    for negatives in (1, 2 * ITEMS):
        loss = f"train.losses={{label: {{kind: sampled_softmax, negatives: {negatives}}}}}"
        few = ("train.steps=8", "train.epochs=1", "train.batch_size=8", "checkpoint.every_steps=null", settings)
        short = train(words(straight[0], *SYNC, loss, *few), tmp_path / str(negatives))
        assert (short.metrics[-1]["evicted"] > 0) is evicts
        found.append(read_rows(newest_checkpoint(short.run_dir / CHECKPOINTS))["item"])
    assert 0 < found[0].ids.size < ITEMS / 2
    assert found[0].ids.tolist() == found[1].ids.tolist()
    assert found[0].last_used.tolist() == found[1].last_used.tolist()
    assert (found[0].embedding != found[1].embedding).any()


@pytest.mark.slow
def test_dead_loaders_and_embedding_workers_change_no_bit_of_drawn_negatives(tmp_path: Path) -> None:
    """Their successors draw again what was drawn before, and take over the ids that the dead had."""
    more = ("train.steps=200", "train.epochs=10", "checkpoint.every_steps=100")
    given = words(histories(tmp_path), *SYNC, *more)
    whole = train(given, tmp_path / "whole")
    many = [word for word in given if word != "cluster=embedded"]
    with Launched([*many, *CLUSTER, *MANY, "train.log_every_steps=1"], tmp_path / "run") as job:
        for number, role in enumerate(("data-loader-1", "embedding-worker-0", "data-loader-0", "embedding-worker-1")):
            assert kill_all(job, (role,), 20 + 40 * number), job.output[-3000:]
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
    lines = metrics_of(result_of(job.run_dir))
    assert [line for line in lines if line["split"] != "test"] == metrics_of(whole)
    assert rows_of(job.run_dir) == rows_of(whole.run_dir)
    assert dense_of(job.run_dir) == dense_of(whole.run_dir) != {}
