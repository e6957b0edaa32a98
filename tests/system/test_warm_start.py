"""A new run begins with rows and weights of another one, or with vectors, whatever its servers, modes and tables.

With learning rates of 1e-30, and without running statistics, nothing changes while it trains, so that what it saves is
what it began with.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

from persia_cli.data.read.ids import text_id
from persia_cli.engines.job import JobResult
from persia_cli.engines.readiness import with_dense_fit
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import newest_checkpoint
from tests.support.checkpoints import SavedRows, read_rows
from tests.support.jobs import evaluation, launch, plan, train

ROWS, DIM = 640, 8
STILL = ["optimizer.embedding={kind: sgd, lr: 1e-30}", "optimizer.dense={kind: sgd, lr: 1e-30}", "train.steps=2"]


def persia(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users and items by number, shops by name; all of them in both splits."""
    draw = np.random.default_rng(0)
    user, item, shop = draw.integers(0, 40, ROWS), draw.integers(0, 30, ROWS), draw.integers(0, 9, ROWS)
    table = {
        "y": ((user + item + shop) % 3 == 0).astype(np.int8),
        "user": user,
        "item": item,
        "shop": [f"shop {each}" for each in shop],
        "price": draw.normal(size=ROWS).astype(np.float32),
    }
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    pq.write_table(pa.table(table), path)
    return path


def words(data: Path, sparse: str = "user, item, shop", *others: str) -> list[str]:
    return [
        *("conf=base", "model=ffnn", f"model.dim={DIM}", "model.hidden=[16]", "model.norm=none", "model.dropout=0"),
        *("mode=sync", "cluster=embedded"),
        *("dataset=parquet", f"dataset.path={data}", "dataset.labels=[y]", "dataset.dense=[price]"),
        *(f"dataset.sparse=[{sparse}]", "dataset.split={kind: every, n: 5}"),
        *("train.batch_size=32", "train.log_every_steps=5", "train.epochs=2"),
        "embedding.capacity=4000",
        *others,
    ]


@pytest.fixture(scope="module")
def source(data: Path, tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    run_dir = tmp_path_factory.mktemp("source") / "run"
    settings = ("optimizer.embedding={kind: adam, lr: 0.01}", "cluster.embedding_servers=2")
    return train(words(data, "user, item, shop", *settings), run_dir)


def rows_of(result: JobResult) -> dict[str, SavedRows]:
    return read_rows(newest_checkpoint(result.run_dir / "checkpoints"))


def weights_of(result: JobResult) -> dict[str, Any]:
    return load_file(newest_checkpoint(result.run_dir / "checkpoints") / "dense" / "dense.safetensors")


def event(result: JobResult) -> dict[str, Any]:
    (found,) = [each for each in result.events if each["event"] == "warm_start"]
    return found


def assert_same_embedding(now: SavedRows, before: SavedRows) -> None:
    np.testing.assert_array_equal(now.ids, before.ids)
    np.testing.assert_array_equal(now.embedding, before.embedding)


@pytest.mark.parametrize(
    "changes",
    [
        ["cluster.embedding_servers=3", "embedding.num_partitions=16", "mode=hybrid", "mode.staleness=4"],
        ["mode=async"],
    ],
    ids=["hybrid", "async"],
)
def test_an_evaluation_has_the_digits_of_the_source(data, source, tmp_path, changes):
    now = train([*words(data), *STILL, *changes, f"init_from={source.run_dir}"], tmp_path / "run")
    ours, theirs = evaluation(now), evaluation(source)
    assert {key: ours[key] for key in ("loss", "auc", "unknown")} == {
        key: theirs[key] for key in ("loss", "auc", "unknown")
    }
    assert ours["step"] == 2
    for name, before in rows_of(source).items():
        assert_same_embedding(rows_of(now)[name], before)
    for name, before in weights_of(source).items():
        np.testing.assert_array_equal(weights_of(now)[name], before)
    assert now.metrics[0]["samples"] == 64
    assert [each["states"] for each in event(now)["tables"]] == [False] * 3


def test_renames_skips_and_new_tables(data, source, tmp_path):
    """`user` has another name, `item` begins anew, `shop` is read twice; the network has one input more."""
    sparse = "{name: user, table: member}, item, shop, {name: again, column: user, table: copy}"
    asked = f"init_from={{path: {source.run_dir}, tables: {{user: [member, copy]}}, skip: [item]}}"
    planned = plan([*words(data, sparse), *STILL, "cluster.embedding_servers=3", asked], tmp_path / "run")
    now = launch(with_dense_fit(planned))
    before, after = rows_of(source), rows_of(now)
    for name, old in {"member": "user", "copy": "user", "shop": "shop"}.items():
        assert_same_embedding(after[name], before[old])
        assert after[name].last_used.max() <= 1
    assert not set(map(bytes, after["item"].embedding)) & set(map(bytes, before["item"].embedding))
    told = event(now)
    assert [(each["table"], each["from"], each["rows"]) for each in told["tables"]] == [
        ("member", "user", 40), ("shop", "shop", 9), ("copy", "user", 40)
    ]  # fmt: skip
    assert (told["new"], told["unused"]) == (["item"], ["item"])
    first = "network.0.weight"
    assert told["dense"]["new"] == [f"{first} 16x33 (saved: 16x25)"]
    for name, weight in weights_of(now).items():
        assert (name == first) or np.array_equal(weight, weights_of(source)[name]), name


def test_states_of_optimizers_go_on_or_begin_anew(data, source, tmp_path):
    settings = ["optimizer.embedding={kind: adam, lr: 1e-30}", "train.steps=1", f"init_from.path={source.run_dir}"]
    kept = train([*words(data), *settings], tmp_path / "kept")
    reset = train([*words(data), *settings, "init_from.skip=[optimizer]"], tmp_path / "reset")
    before, after, anew = (rows_of(each)["user"] for each in (source, kept, reset))
    # Rows that were in the one batch have moved on; all others have what was saved, or nothing.
    still = after.states["adam_square"] == before.states["adam_square"]
    assert 0.2 < still.mean() < 1.0
    np.testing.assert_array_equal(
        after.states["adam_mean"][still.all(axis=1)], before.states["adam_mean"][still.all(axis=1)]
    )
    assert not anew.states["adam_square"][still.all(axis=1)].any()
    assert [each["states"] for each in event(kept)["tables"]] == [True] * 3


def test_vectors_of_files_become_rows(data, source, tmp_path):
    """Ids of text are hashed as those of the data; what the data lacks has a row as well."""
    names = [f"shop {each}" for each in range(12)]
    values = np.random.default_rng(1).normal(size=(12, DIM))
    lists = pa.array(values.tolist(), pa.list_(pa.float64(), DIM))
    pq.write_table(pa.table({"name": names, "vector": lists}), tmp_path / "shops.parquet", row_group_size=5)
    asked = [f"init_from.vectors.shop={tmp_path / 'shops.parquet'}", "cluster.embedding_servers=2"]
    now = train([*words(data), *STILL, *asked], tmp_path / "alone")
    expected = dict(zip((text_id("shop", name) for name in names), values.astype(np.float32), strict=True))
    for result in (now, train([*words(data), *STILL, *asked, f"init_from.path={source.run_dir}"], tmp_path / "both")):
        found = rows_of(result)["shop"]
        assert set(found.ids.tolist()) == set(expected)
        for id_, embedding in zip(found.ids.tolist(), found.embedding, strict=True):
            np.testing.assert_array_equal(embedding, expected[id_])
    assert_same_embedding(rows_of(result)["user"], rows_of(source)["user"])
    assert event(now)["dense"] is None
    assert event(result)["unused"] == ["shop"]


def test_an_exported_table_comes_back(data, source, tmp_path):
    """The ids of text are hashes in the file: hashed once more, no row would be found."""
    for table in ("shop", "user"):
        output = tmp_path / f"{table}.parquet"
        ended = persia("checkpoint", "export", source.run_dir, "--table", table, "--output", output)
        assert ended.exit_code == 0, ended.output
    both = [f"init_from.vectors.{table}.path={tmp_path / table}.parquet" for table in ("shop", "user")]
    ended = persia("train", *words(data), *both, "--run-dir", tmp_path / "refused")
    assert "column id holds no text; give init_from.vectors.shop.ids=integer if it holds the hashes" in str(
        ended.exception
    )
    now = train([*words(data), *STILL, *both, "init_from.vectors.shop.ids=integer"], tmp_path / "run")
    for table in ("shop", "user"):
        assert_same_embedding(rows_of(now)[table], rows_of(source)[table])


def test_a_dry_run_shows_it_and_a_resumed_run_has_its_own_checkpoint(data, source, tmp_path):
    """A resumed run does not begin with the other model again, which may be removed by then."""
    other = tmp_path / "source"
    other.symlink_to(source.run_dir)
    command = [*words(data), "train.steps=20", "checkpoint.every_steps=10", f"init_from={other}"]
    shown = persia("train", *command, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert f"with the model of step {evaluation(source)['step']} in {other}/checkpoints/step-" in shown.stdout
    assert "user: 40 rows, " in shown.stdout
    assert "dense weights: 4 of 4 taken, " in shown.stdout
    straight = train(command, tmp_path / "straight")
    train([*command, "train.steps=10"], tmp_path / "run")
    other.unlink()
    ended = persia("resume", tmp_path / "run", "train.steps=20")
    assert ended.exit_code == 0, ended.output
    for name, rows in rows_of(straight).items():
        assert_same_embedding(read_rows(newest_checkpoint(tmp_path / "run" / "checkpoints"))[name], rows)
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "warm_start" not in events


def test_a_refusal_comes_before_anything_is_written(data, source, tmp_path):
    ended = persia("train", *words(data), "model.dim=4", f"init_from={source.run_dir}", "--run-dir", tmp_path / "run")
    assert "table user has dim 4, and was saved with dim 8" in str(ended.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_and_ranks_begin_with_it(data, source, tmp_path):
    cluster = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=3", "cluster.embedding_workers=2"]
    now = train([*words(data), *STILL, *cluster, f"init_from={source.run_dir}"], tmp_path / "run")
    assert evaluation(now)["loss"] == pytest.approx(evaluation(source)["loss"], rel=1e-6)
    for name, before in rows_of(source).items():
        assert_same_embedding(rows_of(now)[name], before)
