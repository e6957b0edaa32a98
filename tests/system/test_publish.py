"""Versions that a job publishes while it trains are the exports of their steps, whatever happens to the publisher."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

import duckdb
import numpy as np
import onnx
import psutil
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from persia_cli.config.record import CONFIG, read_run
from persia_cli.disk import claim
from persia_cli.errors import CheckpointError, DiskError, UserError
from persia_cli.main import app
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.publish.publisher import Publisher, publish_run
from persia_cli.publish.rows import base_rows
from persia_cli.publish.version import (
    CURRENT,
    VERSION,
    chain_of,
    read_version,
    require_publishable,
    served_version,
    versions_of,
    write_served,
)
from persia_cli.serving.description import NETWORK, FrozenGroup, read_description, require_files
from persia_cli.serving.golden import read_golden
from persia_cli.serving.overlay import TableChanges, read_changes, rows_file
from persia_cli.store.checkpoints.cuts import MOST_WAITING, WHOLE, cuts_of, starts_of
from tests.conftest import poll_for
from tests.support.growing import following, put
from tests.support.jobs import train
from tests.support.launched import LIMIT_S, Launched

WORDS = [
    "conf=synthetic", "model=dcn_v2", "model.dim=4", "model.hidden=[16,8]", "dataset.generator.dense=2",
    "dataset.generator.cardinalities=[20,3000]", "dataset.generator.eval_rows=320", "embedding.capacity=1024",
    "embedding.num_partitions=16", "train.batch_size=64", "eval.every_steps=100",
]  # fmt: skip
STEPS, KILLS = 300, 20
Rows = dict[tuple[str, int], bytes]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose cuts all wait, since another process publishes there; its rows do not fit in memory."""
    folder = tmp_path_factory.mktemp("publish")
    (folder / "out").mkdir()
    lock = os.open(folder / "out", os.O_RDONLY)
    try:
        assert claim(lock)
        words = [*WORDS, "cluster=embedded", f"dataset.generator.train_rows={64 * STEPS}"]
        train([*words, f"publish.to={folder / 'out'}", "publish.every_s=0.05"], folder / "run")
    finally:
        os.close(lock)
    return folder / "run"


@pytest.fixture(scope="module")
def published(waiting: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of that run, and of the versions that it has published."""
    folder = tmp_path_factory.mktemp("published")
    shutil.copytree(waiting, folder / "run")
    assert publish_run(folder / "run", str(folder / "out"), follows=False)[0] == MOST_WAITING + 1
    assert cuts_of(starts_of(folder / "run")[-1]) == []
    return folder / "run", folder / "out"


def rows_of(folder: Path, number: int) -> Rows:
    """All rows of a version by table and key: those of its base, changed by each delta."""
    chain, found = chain_of(folder, number), dict[tuple[str, int], bytes]()
    for version in chain:
        require_files(folder / version.folder, version.files, contents=True)
    base = folder / chain[0].folder
    for group in read_description(base).groups:
        apply(found, group, base_rows(base, group))
        for version in chain[1:]:
            apply(found, group, read_changes(folder / version.folder / rows_file(group.number), group))
    return found


def apply(found: Rows, group: FrozenGroup, changes: list[TableChanges]) -> None:
    """Change rows by those of a group in one version."""
    for table, change in zip(group.tables, changes, strict=True):
        for key in change.keys[change.deleted].tolist():
            found.pop((table.name, key), None)
        for key, row in zip(change.keys[~change.deleted].tolist(), change.rows, strict=True):
            found[table.name, key] = row.tobytes()


def test_base_and_deltas_are_the_export_of_the_last_step(published: tuple[Path, Path], tmp_path: Path) -> None:
    """To the bit: rows, also without those that were evicted, dense weights, and scores of golden samples."""
    run, out = published
    done = CliRunner().invoke(app, ["export", str(run), "-o", str(tmp_path / "model"), "--step", f"{STEPS}"])
    assert done.exit_code == 0, done.output
    number = served_version(out)
    chain = chain_of(out, number)
    assert len(chain) > 2
    assert chain[-1].step == STEPS
    [(deleted,)] = duckdb.sql(f"select sum(deleted::int) from '{out}/delta-*/rows/*.parquet'").fetchall()
    assert deleted > 0, "rows were evicted"
    exported = read_description(tmp_path / "model")
    expected: Rows = {}
    for group in exported.groups:
        apply(expected, group, base_rows(tmp_path / "model", group))
    assert rows_of(out, number) == expected
    last = out / chain[-1].folder
    golden, theirs = read_golden(last, exported), read_golden(tmp_path / "model", exported)
    assert golden.logits.tobytes() == theirs.logits.tobytes()
    ours = {each.name: numpy_helper.to_array(each) for each in onnx.load(last / NETWORK).graph.initializer}
    for each in onnx.load(tmp_path / "model" / NETWORK).graph.initializer:
        if each.name in ours:
            np.testing.assert_array_equal(ours[each.name], numpy_helper.to_array(each))
    assert any(name.startswith("network.") for name in ours)


def test_the_rows_of_a_delta_are_plain_parquet(published: tuple[Path, Path]) -> None:
    out = published[1]
    found = duckdb.sql(
        'select "table", bool_and(deleted = (embedding is null)), min(len(embedding)) '
        f"from '{out}/delta-*/rows/*.parquet' group by all"
    ).fetchall()
    assert sorted(found) == [("feature_0", True, 4), ("feature_1", True, 4)]


@pytest.mark.parametrize("killed", ["at the base", "at a delta", "before current.json", "before the cut is removed"])
def test_a_killed_publisher_loses_no_delta_and_applies_none_twice(
    waiting: Path, published: tuple[Path, Path], tmp_path: Path, killed: str
) -> None:
    """The folders are as a kill at this point leaves them."""
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(waiting, run)
    versions = list(versions_of(published[1]))
    done = versions[:-1] if killed == "at a delta" else [] if killed == "at the base" else versions
    shutil.copytree(published[1], out)
    (out / CURRENT).unlink()
    for number, folder in versions_of(out).items():
        if number not in done:
            folder.rename(f"{folder}.partial")
    if done:
        write_served(out, versions[-2] if killed == "before current.json" else done[-1])
        for cut in cuts_of(starts_of(run)[-1])[:-1]:
            shutil.rmtree(cut)
    publish_run(run, str(out), follows=False)
    assert list(versions_of(out)) == versions
    assert served_version(out) == versions[-1]
    assert rows_of(out, versions[-1]) == rows_of(published[1], versions[-1])
    assert not [*out.glob("*.partial"), *cuts_of(starts_of(run)[-1])]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_random_kills_of_a_publisher_lose_no_delta(
    waiting: Path, published: tuple[Path, Path], tmp_path: Path
) -> None:
    """Each comes a random time after a random version; then the current version is whole."""
    draw, kills, versions = random.Random(8), 0, versions_of(published[1])
    run, out = tmp_path / "run", tmp_path / "out"
    last_rows = rows_of(published[1], max(versions))
    with forks() as started:
        while kills < KILLS:
            shutil.copytree(waiting, run)
            while cuts_of(starts_of(run)[-1]):
                publisher = started.Process(target=publish_run, args=(run, str(out), False))
                publisher.start()
                after = draw.randrange(len(versions))
                poll_for(
                    lambda after=after, publisher=publisher: len(versions_of(out)) >= after or not publisher.is_alive(),
                    LIMIT_S,
                    f"version {after}",
                )
                publisher.join(draw.uniform(0, 0.1 if after else 5) if kills < KILLS else LIMIT_S)
                if publisher.is_alive():
                    publisher.kill()
                    publisher.join()
                    kills += 1
                else:
                    assert publisher.exitcode == 0
                if (out / CURRENT).is_file():
                    rows_of(out, served_version(out))
            assert list(versions_of(out)) == list(versions)
            assert served_version(out) == max(versions)
            assert rows_of(out, max(versions)) == last_rows
            shutil.rmtree(run)
            shutil.rmtree(out)


@contextmanager
def forks() -> Iterator[ForkServerContext]:
    """Yield a context whose processes have the imports of a publisher from their start."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["persia_cli.publish.publisher", "onnxscript", "onnxruntime"])
    try:
        yield context
    finally:
        forkserver._forkserver._stop()  # else it would live as long as this process


def test_a_missing_delta_ends_in_a_request_for_the_whole_model(waiting: Path, tmp_path: Path) -> None:
    """Without a job that grants it, the cuts after that stay."""
    shutil.copytree(waiting, tmp_path / "run")
    cuts = cuts_of(starts_of(tmp_path / "run")[-1])
    shutil.rmtree(cuts[1])
    with pytest.raises(CheckpointError, match="resume the run"):
        publish_run(tmp_path / "run", str(tmp_path / "out"), follows=False)
    assert list(versions_of(tmp_path / "out")) == [1]
    assert cuts_of(cuts[0].parent) == cuts[2:]
    run = read_run(tmp_path / "run" / CONFIG)
    with (
        closing(Publisher(tmp_path / "run", run, str(tmp_path / "out"), follows=True)) as publisher,
        pytest.raises(CheckpointError, match="whole model"),
    ):
        publisher.publish_waiting()
    assert (cuts[0].parent / WHOLE).exists()


def test_without_cuts_the_newest_checkpoint_is_published_once(published: tuple[Path, Path], tmp_path: Path) -> None:
    run, out = published
    command = ["publish", str(run), "--to", str(tmp_path / "empty")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert rows_of(tmp_path / "empty", 1) == rows_of(out, served_version(out))
    assert "0 versions; the newest in" in CliRunner().invoke(app, command).stderr
    assert list(versions_of(tmp_path / "empty")) == [1]
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    refused = CliRunner().invoke(app, ["publish", str(tmp_path / "run"), "--to", str(tmp_path / "other")])
    assert isinstance(refused.exception, UserError)
    assert "checkpoint" in str(refused.exception)


def test_a_rollback_stays_and_other_runs_are_refused(published: tuple[Path, Path], tmp_path: Path) -> None:
    run, out = published
    shutil.copytree(out, tmp_path / "out")
    newest = served_version(out)
    for version, served in (("1", 1), ("newest", newest), ("2", 2)):
        done = CliRunner().invoke(app, ["rollback", str(tmp_path / "out"), version])
        assert done.exit_code == 0, done.output
        publish_run(run, str(tmp_path / "out"), follows=False)
        assert served_version(tmp_path / "out") == served
    shutil.copytree(run, tmp_path / "other")
    with pytest.raises(UserError, match=r"versions of another run \(run\)"):
        publish_run(tmp_path / "other", str(tmp_path / "out"), follows=False)
    assert (tmp_path / "out" / f"base-{1:08d}" / VERSION).is_file()


def test_a_new_run_of_the_same_name_is_refused_at_once(published: tuple[Path, Path], tmp_path: Path) -> None:
    run, out = published
    with pytest.raises(UserError, match=r"versions of another run \(run\)"):
        train([*WORDS, "cluster=embedded", f"publish.to={out}"], tmp_path / run.name)
    assert not (tmp_path / run.name).exists()


def test_a_run_that_begins_again_goes_on_in_its_folder(tmp_path: Path) -> None:
    """It was killed before its first checkpoint."""
    run, out = tmp_path / "run", tmp_path / "out"
    words = [*(word for word in WORDS if not word.startswith("eval.")), "cluster=embedded", "resume=auto"]
    words += [f"dataset.generator.train_rows={64 * 10 * STEPS}", f"publish.to={out}", "publish.every_s=0.2"]
    with Launched(words, run) as job:
        poll_for(lambda: out.is_dir() and versions_of(out), 2 * LIMIT_S, "the first version")
        job.process.kill()
        job.process.wait()
    [base] = [version for version in map(read_version, versions_of(out).values()) if version.is_base]
    with Launched(words, run) as job:
        assert job.end(2 * LIMIT_S)[0] == 0, job.output
    chain = chain_of(out, served_version(out))
    assert (chain[0].version > base.version, chain[-1].step) == (True, 10 * STEPS)


@pytest.mark.parametrize("place", ["/proc/published", "file/published"])
def test_a_place_without_rights_is_refused_before_the_training(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=place):
        require_publishable(str(tmp_path / place), "run")


def test_with_a_guard_each_version_has_passed_the_portion_after_it(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / "data", number, 100)
    words = [*following(tmp_path / "data"), "cluster=embedded", "train.until={idle_s: 1}", "eval.next=true"]
    train([*words, f"publish.to={tmp_path / 'out'}", "publish.every_s=0.01", "publish.guard.ne=100"], tmp_path / "run")
    lines = read_journal(tmp_path / "run" / METRICS)
    scored = {line["step"] for line in lines if line["split"] == "eval"}
    published = {read_version(folder).step for folder in versions_of(tmp_path / "out").values()}
    assert published
    assert published <= scored
    assert max(line["step"] for line in lines) not in scored, "no portion has come after the last one"


@pytest.mark.slow
def test_a_publisher_that_is_killed_starts_again(tmp_path: Path) -> None:
    """The last version is of the last step, and each delta follows its parent."""
    run, out, steps = tmp_path / "run", tmp_path / "out", 40 * STEPS  # it trains until a third version is there
    words = [*WORDS, f"dataset.generator.train_rows={64 * steps}", f"publish.to={out}", "publish.every_s=0.3"]
    with Launched(words, run) as job:
        for version in (1, 3):
            poll_for(lambda version=version: len(versions_of(out)) >= version, 2 * LIMIT_S, job.output)
            [publisher] = [
                each for each in psutil.Process(job.pids()["coordinator-0"]).children() if "publish" in each.cmdline()
            ]
            publisher.kill()
        assert job.end(2 * LIMIT_S)[0] == 0, job.output
        assert "the publisher ended (signal SIGKILL) and starts again" in job.output
    chain = chain_of(out, served_version(out))
    assert chain[-1].step == steps
    assert [version.parent for version in chain[1:]] == [version.version for version in chain[:-1]]
