"""Checkpoints of changes: a chain is what a full save is, and a run goes on from it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from persia_cli.errors import CheckpointError
from persia_cli.store.checkpoints.chain import Chain, read_chain
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps, read_manifest
from tests.support.jobs import train
from tests.system.test_resume import lines, persia

STEPS = 120
WORDS = [
    *("conf=synthetic", "cluster=embedded", "mode=sync", "train.batch_size=32", "train.log_every_steps=10"),
    *("dataset.generator.train_rows=3840", "dataset.generator.eval_rows=32", f"train.steps={STEPS}"),
    *("checkpoint.every_steps=20", "checkpoint.keep=null", "optimizer.embedding.kind=adagrad"),
]
SMALL = ["embedding.capacity=4000", "embedding.num_partitions=2", "train.steps=42", "checkpoint.every_steps=2"]
"""So few rows that after 20 steps about 150 are evicted in each one."""


@pytest.mark.parametrize("words", [["cluster.embedding_servers=3"], SMALL], ids=["three", "evictions"])
def test_a_chain_has_the_rows_of_a_full_save(tmp_path: Path, words: list[str]) -> None:
    """Two runs, the same but for what their checkpoints are; rows are compared as the program's reader yields them."""
    full = train([*WORDS, *words, "checkpoint.full_every=1"], tmp_path / "full").run_dir
    deltas = train([*WORDS, *words, "checkpoint.full_every=4"], tmp_path / "deltas").run_dir
    steps = finished_steps(full / CHECKPOINTS)
    depths = [len(read_chain(checkpoint_folder(deltas / CHECKPOINTS, step)).manifests) for step in steps]
    assert depths == [1 + number % 4 for number in range(len(steps))]
    for step in steps:
        ours = read_chain(checkpoint_folder(deltas / CHECKPOINTS, step)).row_files(with_dense=True)
        theirs = read_chain(checkpoint_folder(full / CHECKPOINTS, step)).row_files(with_dense=True)
        for own, other in zip(ours, theirs, strict=True):
            rows, expected = ([row for batch in file.batches() for row in batch.to_pylist()] for file in (own, other))
            assert rows == expected
    gone = sum(len(read_manifest(checkpoint_folder(deltas / CHECKPOINTS, step)).deleted_files()) for step in steps)
    assert (gone > 5) == (words == SMALL)


def test_a_run_goes_on_through_many_changes(tmp_path: Path) -> None:
    """Straight, and stopped and resumed after each of five checkpoints of changes, once on other servers."""
    straight = train([*WORDS, "checkpoint.full_every=10"], tmp_path / "straight").run_dir
    run = train([*WORDS, "train.steps=20", "checkpoint.full_every=10"], tmp_path / "run").run_dir
    for step in range(40, 121, 20):
        servers = ["cluster.embedding_servers=2"] if step >= 80 else []
        ended = persia("resume", run, f"train.steps={step}", *servers)
        assert ended.exit_code == 0, (ended.output, ended.exception)
    depths = [len(read_chain(checkpoint_folder(run / CHECKPOINTS, step)).manifests) for step in range(20, 121, 20)]
    assert depths == [1, 2, 3, 1, 2, 3]
    assert lines(run)[-1] == lines(straight)[-1]
    ours, theirs = (read_chain(checkpoint_folder(each / CHECKPOINTS, STEPS)) for each in (run, straight))
    assert rows_of(ours) == rows_of(theirs)


def rows_of(chain: Chain) -> list[dict[str, Any]]:
    """All rows of a checkpoint in the order of their keys, whatever the number of servers that saved them."""
    files = sorted(chain.row_files(with_dense=True), key=lambda file: (file.rows.group, file.rows.first))
    return [row for file in files for batch in file.batches() for row in batch.to_pylist()]


def test_commands_read_changes_and_refuse_what_is_not_whole(tmp_path: Path) -> None:
    words = [*WORDS, "train.steps=60", "checkpoint.full_every=3", "eval.every_steps=60"]
    run = train(words, tmp_path / "run").run_dir
    assert [len(read_chain(checkpoint_folder(run / CHECKPOINTS, step)).manifests) for step in (20, 40, 60)] == [1, 2, 3]
    scored = persia("eval", run, "cluster.embedding_servers=2")
    assert scored.exit_code == 0, (scored.output, scored.exception)
    for command in (["table", "stats"], ["checkpoint", "show"], ["checkpoint", "verify"]):
        ended = persia(*command, run)
        assert ended.exit_code == 0, (command, ended.output, ended.exception)
    shutil.rmtree(checkpoint_folder(run / CHECKPOINTS, 40))
    for command in (["eval", run], ["resume", run, "train.steps=80"], ["table", "stats", run]):
        ended = persia(*command)
        assert isinstance(ended.exception, CheckpointError), ended.output
        assert "step-60 has only what changed since step 40, and cannot be read without" in str(ended.exception)
