"""The rows of a frozen table never change, whatever the mode, the optimizer's settings and the number of processes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.commands.plan_view import warm_start_lines
from persia_cli.engines.job import JobResult
from persia_cli.errors import ConfigError
from persia_cli.store.checkpoints.retention import choose_checkpoint
from tests.support.checkpoints import SavedRows, read_rows
from tests.support.jobs import plan, train

ROWS = 640
STACK = "embedding.tables.item={hash_stack: {rounds: 2, size: 40}}"
FROZEN_STACK = "embedding.tables.item={hash_stack: {rounds: 2, size: 40}, trainable: false}"
FROZEN = "embedding.tables.item.trainable=false"
PENALTIES = [
    "optimizer.embedding={kind: adagrad, lr: 0.1, l2: 0.1}",
    "embedding.weight_bound=0.005",
    "embedding.init_bound=0.001",
]


def words(folder: Path, users: int, *others: str) -> list[str]:
    """A job on samples of so many users and items."""
    draw = np.random.default_rng(users)
    user, item = draw.integers(0, users, ROWS), draw.integers(0, users, ROWS)
    path = folder / f"{users}.parquet"
    pq.write_table(pa.table({"y": ((user + item) % 3 == 0).astype(np.int8), "user": user, "item": item}), path)
    return [
        *("conf=base", "model=ffnn", "model.dim=4", "model.hidden=[8]", "mode=sync", "cluster=embedded"),
        *("dataset=parquet", f"dataset.path='{path}'", "dataset.labels=[y]", "dataset.sparse=[user, item]"),
        *("dataset.split={kind: every, n: 5}", "train.batch_size=32", "embedding.capacity=4000"),
        *others,
    ]


def rows_of(result: JobResult) -> dict[str, SavedRows]:
    """Return the rows of the checkpoint that `init_from` takes."""
    return read_rows(choose_checkpoint(result.run_dir / "checkpoints", None))


@pytest.mark.parametrize(
    ("source", "frozen", "settings"),
    [
        ([], FROZEN, PENALTIES),
        pytest.param([STACK], FROZEN_STACK, ["mode=async"], marks=pytest.mark.slow),
        pytest.param(
            [],
            FROZEN,
            ["mode=hybrid", "cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["rows", "hash-stack", "ranks"],
)
def test_frozen_rows_keep_their_bits_and_others_train(
    tmp_path: Path, source: list[str], frozen: str, settings: list[str]
) -> None:
    first = train(words(tmp_path, 30, *source, "train.epochs=2"), tmp_path / "first")
    second = words(tmp_path, 50, f"init_from={first.run_dir}", frozen, *settings)
    warm = plan(second, tmp_path / "planned").job.warm
    assert warm is not None
    assert [line.endswith(" rows, frozen") for line in warm_start_lines(warm) if line.startswith("item: ")] == [True]
    before, now = rows_of(first), rows_of(train(second, tmp_path / "second"))
    np.testing.assert_array_equal(now["item"].ids, before["item"].ids)
    assert np.array_equal(now["item"].embedding.view(np.uint32), before["item"].embedding.view(np.uint32))
    assert set(now["item"].states) <= {"frequency"}
    assert now["user"].ids.size == 50
    changed = np.any(now["user"].embedding[:30] != before["user"].embedding, axis=1)
    assert changed.all()


def test_a_frozen_table_needs_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"item\.trainable=false: nothing gives this table its rows; .* init_from"):
        plan(words(tmp_path, 30, FROZEN), tmp_path / "run")
    first = train(words(tmp_path, 30, "train.steps=2"), tmp_path / "first")
    skipping = words(tmp_path, 30, FROZEN, f"init_from={{path: {first.run_dir}, skip: [item]}}")
    with pytest.raises(ConfigError, match=r"item\.trainable=false: init_from gives this table no rows"):
        plan(skipping, tmp_path / "run")


def test_a_setting_of_training_is_refused_for_a_frozen_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no effect on a table that is not trainable"):
        plan(words(tmp_path, 30, "embedding.tables.item={trainable: false, clip_norm: 1}"), tmp_path / "run")
