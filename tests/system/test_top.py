"""`persia top` on a real job: its processes, a save and the end by keys, and a job whose processes are all killed."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.launched import ENDLESS, LIMIT_S, Launched
from tests.support.top import use_top

pytestmark = pytest.mark.slow

ROLES = ("coordinator", "data-loader", "embedding-server", "embedding-worker", "nn-worker")


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds; fail with `what` if it does not in time."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


def rows(pilot: Any, table: str) -> list[list[str]]:
    """Return the texts of a table."""
    found = pilot.app.query_one(f"#{table}")
    return [[cell.plain for cell in found.get_row_at(row)] for row in range(found.row_count)]


def test_it_shows_every_process_saves_on_request_and_ends_the_job(tmp_path: Path) -> None:
    async def use(pilot: Any, text: Callable[[], str]) -> None:
        await until(lambda: "are the bottleneck" in text() or "leave" in text(), "the bottleneck")
        await until(lambda: len(rows(pilot, "roles")) == len(ROLES), "every replica")
        await until(lambda: all(float(row[1]) and "%" in row[2] for row in rows(pilot, "tables")), "rows and hit rates")
        pids = job.pids()
        for name, cores, memory, _, messages, nbytes, waits, _, where in rows(pilot, "roles"):
            assert name.rpartition("-")[0] in ROLES
            assert float(cores) >= 0.0
            assert memory.endswith("MiB")
            assert float(messages.replace(",", "")) > 0.0
            assert nbytes
            assert "%" in waits
            assert name == "coordinator-0" or where.endswith(str(pids[name]))
        assert {row[0] for row in rows(pilot, "tables")} >= {"feature_0", "feature_1"}
        assert "samples/s" in text()
        await pilot.press("w")
        await until(lambda: list(job.run_dir.glob("checkpoints/step-*/manifest.json")), "a checkpoint")
        assert job.process.poll() is None
        await pilot.press("x")
        await asyncio.sleep(1.0)
        assert job.process.poll() is None  # the key has to be pressed twice
        await pilot.press("x")
        await until(lambda: job.process.poll() is not None, "the end of the job")
        await until(lambda: "stopped" in text(), "the end on the screen")
        assert len(rows(pilot, "roles")) == len(ROLES)

    with Launched(ENDLESS, tmp_path / "run") as job:
        job.wait_for_training()
        use_top(job.run_dir, use)
        assert job.process.returncode == 75, job.output
    assert not (tmp_path / "run" / "live.json").exists()


def test_a_job_whose_processes_are_all_killed_is_dead(tmp_path: Path) -> None:
    async def use(pilot: Any, text: Callable[[], str]) -> None:
        await until(lambda: len(rows(pilot, "roles")) == len(ROLES), "every replica")
        for pid in (job.process.pid, *job.pids().values()):
            with suppress(ProcessLookupError):  # the death of the driver ends the others
                os.kill(pid, signal.SIGKILL)
        await until(lambda: "all were killed" in text(), "the death on the screen")
        assert len(rows(pilot, "roles")) == len(ROLES)

    with Launched(ENDLESS, tmp_path / "run") as job:
        job.wait_for_training()
        use_top(job.run_dir, use)
