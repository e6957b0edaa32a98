"""A training that follows a folder: each row once, whatever dies, with the bits of an undisturbed run."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.live_state import LIVE_STATE
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.growing import BATCH, counting, following, put, updates
from tests.support.jobs import train
from tests.support.launched import Launched

FILES, ROWS = 9, 100
STEPS = 3 * -(-3 * ROWS // BATCH)
LIMIT_S = 240.0
SAVES = ["checkpoint.every_steps=7"]
END = ["train.until={idle_s: 1}", *SAVES]
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


@pytest.mark.parametrize(
    "role", ["data-loader-0", pytest.param("nn-worker-0", marks=pytest.mark.slow), "coordinator-0"]
)
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
