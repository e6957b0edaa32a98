"""A training that follows a folder: each row once, whatever dies, with the bits of an undisturbed run."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
import pytest

from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.live_state import LIVE_STATE
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.growing import BATCH, counting, following, put, table_of, updates
from tests.support.jobs import train
from tests.support.launched import Launched
from tests.support.replicas import replicas_of
from tests.support.tables import CATALOG, catalog_in, start_libraries

FILES, ROWS = 9, 100
STEPS = 3 * -(-3 * ROWS // BATCH)
LIMIT_S = 240.0
SAVES = ["checkpoint.every_steps=7"]
END = ["train.until={idle_s: 1}", *SAVES]
KILLS = 20
MINUTES = float(os.environ.get("PERSIA_FOLLOW_MINUTES", "30"))
"""Duration of the test of memory."""
ROLES = ["coordinator-0", "data-loader-0", "data-loader-1", "embedding-worker-0", "embedding-server-0", "nn-worker-0"]
CLUSTER = ["cluster=local", "cluster.data_loaders=2", "recovery.max_restarts=100"]

pytestmark = pytest.mark.timeout(900)


def steps_of(run_dir: Path) -> int:
    return max((line["step"] for line in read_journal(run_dir / METRICS)), default=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that found all files at its start."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for number in range(FILES):
        put(folder / "data", number, ROWS)
    result = train([*following(folder / "data"), *END, "cluster=embedded"], folder / "run")
    assert steps_of(result.run_dir) == STEPS
    return Path(str(newest_checkpoint(result.run_dir / CHECKPOINTS)))


@pytest.mark.parametrize("role", ["data-loader-0", "coordinator-0"])
def test_files_that_come_meanwhile_and_deaths_change_no_bit(role: str, undisturbed: Path, tmp_path: Path) -> None:
    data, draw = tmp_path / "data", Random(role)
    for number in range(4):
        put(data, number, ROWS)
    words = [*following(data), *SAVES, *CLUSTER, f"train.until={{samples: {FILES * ROWS}}}"]
    with Launched(words, tmp_path / "run") as job:
        for number in range(4, FILES):
            step = draw.randrange(1, 9) if number == 4 else 10 * (number // 3)
            poll_for(lambda step=step: steps_of(job.run_dir) >= step, LIMIT_S, f"step {step} is trained")
            if number in (4, 6):
                poll_for(lambda: _is_killed(job.run_dir, role), LIMIT_S, f"{role} is killed")
            put(data, number, ROWS)
        assert job.end(LIMIT_S)[0] == 0, job.output[-3000:]
    assert_same_model(Path(str(newest_checkpoint(tmp_path / "run" / CHECKPOINTS))), undisturbed)


class Growing(NamedTuple):
    """Data that grows by a file of rows."""

    path: str
    add: Callable[[int], object]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Begin the threads that libraries of tables keep."""
    start_libraries(tmp_path_factory.mktemp("libraries") / "table")


@pytest.fixture(params=["folder", "iceberg", "delta"])
def growing(
    request: pytest.FixtureRequest, libraries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Growing:
    if request.param == "folder":
        return Growing(str(tmp_path / "data"), partial(put, tmp_path / "data"))
    if request.param == "iceberg":
        table = catalog_in(tmp_path, monkeypatch).create_table("db.rows", schema=table_of(0).schema)
        return Growing(f"iceberg:{CATALOG}/db.rows", lambda number: table.append(table_of(number)))
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
    place = tmp_path / "table"
    return Growing(f"delta:{place}", lambda number: deltalake.write_deltalake(place, table_of(number), mode="append"))


@pytest.mark.slow
def test_random_kills_change_no_bit_and_each_row_is_trained_once(growing: Growing, tmp_path: Path) -> None:
    draw, per_portion = Random(growing.path.partition(":")[0]), 3
    words = [*following(tmp_path / "data"), *counting(tmp_path), *SAVES, f"dataset.path={growing.path}"]
    growing.add(0)
    files, killed = (KILLS + 1) * per_portion, []
    end = f"train.until={{samples: {files * ROWS}}}"
    with Launched([*words, *CLUSTER, end], tmp_path / "run") as job:
        for kill in range(KILLS):
            for number in range(max(kill * per_portion, 1), (kill + 1) * per_portion):
                growing.add(number)
            step, role = 10 * kill + draw.randrange(10), draw.choice(ROLES)
            poll_for(lambda step=step: steps_of(job.run_dir) >= step, LIMIT_S, f"step {step} is trained")
            poll_for(lambda role=role: _is_killed(job.run_dir, role), LIMIT_S, f"{role} is killed")
            killed.append((step, role))
        for number in range(files - per_portion, files):
            growing.add(number)
        assert job.end(LIMIT_S)[0] == 0, (killed, job.output[-3000:])
    assert updates(tmp_path / "run" / CHECKPOINTS) == dict.fromkeys(range(files * ROWS), 1.0), killed
    whole = train([*words, *END, "cluster=embedded"], tmp_path / "whole").run_dir
    disturbed, undisturbed = (newest_checkpoint(run_dir / CHECKPOINTS) for run_dir in (tmp_path / "run", whole))
    assert_same_model(Path(str(disturbed)), Path(str(undisturbed)))


@pytest.mark.slow
@pytest.mark.timeout(int(60 * MINUTES) + 900)
def test_memory_is_flat_while_ten_times_the_rows_that_fit_come_and_expire(tmp_path: Path) -> None:
    """Each id comes once, one a second of the data; a row expires after 20 minutes of it."""
    data, capacity, lifetime, number = tmp_path / "data", 4096, 1200, 0
    words = [
        *following(data, rows=1000, wait_s=2.0, time="at"),
        *counting(tmp_path),
        "cluster=local",
        "train.batch_size=100",
    ]
    words += [f"embedding.capacity={capacity}", "embedding.num_partitions=4", f"embedding.expire_after={lifetime}s"]
    words += ["checkpoint.every_steps=100", "checkpoint.keep=2", "train.until.idle_s=5"]
    put(data, 0)
    measured: list[dict[str, float]] = []
    with Launched(words, tmp_path / "run") as job:
        job.wait_for_training()
        begin = time.monotonic()
        while (spent := time.monotonic() - begin) < 60 * MINUTES:
            number += 1
            put(data, number)
            time.sleep(min(0.2 * MINUTES, 0.5))
            if spent > 60 * MINUTES * (len(measured) + 1) / 20:
                found = {name: own_mib(each.pid) for name, each in replicas_of(job.process.pid).items()}
                measured.append(found)
                print(json.dumps({"s": round(spent), "ids": number * ROWS, "mib": found}), flush=True)
        assert job.end(LIMIT_S)[0] == 0, job.output[-3000:]
    ids, settled = (number + 1) * ROWS, measured[len(measured) // 4 :]
    assert ids >= 10 * capacity
    assert max(line["rows"] for line in read_journal(tmp_path / "run" / METRICS)) <= capacity
    counts = updates(tmp_path / "run" / CHECKPOINTS)
    assert set(counts.values()) == {1.0}
    # An id without an expired row in one of its places gets none.
    assert len(counts.keys() & set(range(ids - lifetime, ids))) >= 0.95 * lifetime
    for name in settled[0]:
        of_role = [found[name] for found in settled]
        assert max(of_role) - min(of_role) <= 0.04 * sum(of_role) / len(of_role), (name, measured)


def own_mib(pid: int) -> float:
    """Return the MiB that a process has allocated: what it maps of files depends on other processes."""
    used = psutil.Process(pid).memory_info()
    return round((used.rss - used.shared) / 2**20, 1)


@pytest.mark.slow
def test_each_row_is_trained_once_across_an_end_in_the_middle_of_a_portion(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(4):
        put(data, number, ROWS)
    words = [*following(data, wait_s=1.0), *counting(tmp_path), "cluster=local", "train.log_every_steps=1"]
    with Launched(words, tmp_path / "run") as job:
        poll_for(lambda: steps_of(job.run_dir) >= 3, LIMIT_S, "steps are trained")
        job.process.send_signal(signal.SIGTERM)
        assert job.end(LIMIT_S)[0] == 75, job.output[-3000:]
    stopped = steps_of(tmp_path / "run")
    for number in range(4, 6):
        put(data, number, ROWS)
    with Launched([*words, "resume=auto", "train.until={idle_s: 2}"], tmp_path / "run") as job:
        poll_for(
            lambda: _live(job.run_dir).get("phase") == "idle" or job.process.poll() is not None,
            LIMIT_S,
            "the job is idle",
        )
        put(data, 6, ROWS)
        assert job.end(LIMIT_S)[0] == 0, job.output[-3000:]
    assert stopped < steps_of(tmp_path / "run")
    assert updates(tmp_path / "run" / CHECKPOINTS) == dict.fromkeys(range(7 * ROWS), 1.0)


def _is_killed(run_dir: Path, name: str) -> bool:
    """Kill the present process of a replica; return False if it is not there."""
    for replica in _live(run_dir).get("roles", ()):
        if f"{replica['role']}-{replica['index']}" == name and "pid" in replica:
            with suppress(ProcessLookupError):
                os.kill(replica["pid"], signal.SIGKILL)
                return True
    return False


def _live(run_dir: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((run_dir / LIVE_STATE).read_bytes())
    except (OSError, ValueError):
        return {}
    return state


def test_each_portion_is_scored_before_it_is_trained(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(6):
        put(data, number, ROWS)
    result = train([*following(data, time="at"), *END, "eval.next=true", "cluster=embedded"], tmp_path / "run")
    evaluated = [line for line in result.metrics if line["split"] == "eval"]
    assert [(line["samples"], line["eval_samples"]) for line in evaluated] == [(0, 300), (300, 300)]
    assert evaluated[0]["decayed_loss"] == evaluated[0]["loss"]
    assert evaluated[1]["decayed_loss"] == pytest.approx((0.9 * evaluated[0]["loss"] + evaluated[1]["loss"]) / 1.9)
    trained = [line for line in result.metrics if line["split"] == "train"]
    assert all(line["behind_s"] >= 0.0 and line["behind_data_s"] > 0.0 for line in trained)
    assert trained[-1]["samples"] == 600


def test_a_file_that_does_not_fit_ends_the_training_after_a_save(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(3):
        put(data, number, ROWS)
    (data / "000003.parquet").write_bytes(b"no Parquet at all")
    result = tmp_path / "run"
    with pytest.raises(UserError, match=r"000003\.parquet.*is not a readable Parquet file"):
        train([*following(data), "cluster=embedded"], result)
    assert newest_checkpoint(result / CHECKPOINTS).name == f"step-{-(-300 // BATCH)}"
    assert any(event.get("phase") == "saving" for event in read_journal(result / EVENTS))
