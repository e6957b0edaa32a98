"""A job with a fault every minute does not grow, and leaves nothing when its processes are killed.

`PERSIA_SOAK_MINUTES` is the duration (30), `PERSIA_SOAK_EVERY_S` the interval of faults (60).
"""

import json
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.chaos.disturb import disturb
from tests.conftest import poll_for
from tests.support.launched import Launched
from tests.support.replicas import events_of, replicas_of
from tests.support.small import WORDS

MINUTES = float(os.environ.get("PERSIA_SOAK_MINUTES", "30"))
EVERY_S = float(os.environ.get("PERSIA_SOAK_EVERY_S", "60"))
LIMIT_S = 600.0
JOB = [
    *WORDS,
    "mode=hybrid",
    "mode.staleness=4",
    "cluster=local",
    "cluster.embedding_servers=2",
    "cluster.embedding_workers=2",
    "cluster.data_loaders=2",
    "dataset.generator.train_rows=1_000_000_000",
    "train.log_every_steps=100",
    "checkpoint.every_steps=1000",
    "checkpoint.keep=2",
    "recovery.max_restarts=1000",
    "recovery.window_s=1",
]
FAULTS = [
    ["kill", "data-loader-1"],
    ["kill", "embedding-worker-0"],
    ["kill", "embedding-server-1"],
    ["kill", "nn-worker-0"],
    ["kill", "coordinator-0"],
    ["stop", "embedding-server-0"],
    ["slow", "nn-worker-0"],
    ["cut", "embedding-worker-1", "embedding-server-0"],
    ["cut", "embedding-worker-0", "nn-worker-0"],
    ["fill-disk"],
]
"""Faults in the order of a seed, repeated."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(60 * MINUTES) + 1200)]

Sizes = dict[str, float]


def sizes(job: Launched) -> dict[str, Sizes]:
    """Memory (MiB), threads and files of the driver and each replica, and the files of the whole job."""
    found = {"driver": psutil.Process(job.process.pid)}
    found |= {name: psutil.Process(each.pid) for name, each in replicas_of(job.process.pid).items()}
    measured = {}
    for name, process in found.items():
        try:
            memory = process.memory_full_info().uss / 2**20
            measured[name] = {"memory": memory, "threads": process.num_threads(), "files": process.num_fds()}
        except psutil.NoSuchProcess:
            continue
    # The record of each start of the job is retained, and grows with the number of starts.
    files = [path for path in job.run_dir.rglob("*") if "earlier" not in path.parts and "epochs" not in path.parts]
    temporary, shared = list(job.temporary.rglob("*")), list(Path("/dev/shm").iterdir())
    measured["job"] = {
        "run": len(files),
        "temporary": len(temporary),
        "shared": len(shared),
        "memfds": len(memfds_of(job)),
    }
    return measured


def memfds(processes: Iterable[Path]) -> set[str]:
    """The anonymous files that processes have open, by name and number; they are given by their folders in /proc."""
    found = set()
    for process in processes:
        try:
            for file in (process / "fd").iterdir():
                if "memfd:" in (target := str(file.readlink())):
                    found.add(f"{target} {file.stat().st_ino}")
        except OSError:
            continue
    return found


def memfds_of(job: Launched) -> set[str]:
    pids = [job.process.pid, *(each.pid for each in replicas_of(job.process.pid).values())]
    return memfds(Path("/proc", str(pid)) for pid in pids)


def test_a_job_that_is_disturbed_repeatedly_does_not_grow(tmp_path: Path) -> None:
    draw = random.Random(1)
    measured: list[dict[str, Sizes]] = []
    done: list[str] = []
    with Launched(JOB, tmp_path / "run") as job:
        job.wait_for_training()
        # From then on the job removes a checkpoint for each that it saves.
        poll_for(lambda: saves_of(job.run_dir) > 1, LIMIT_S, "two checkpoints")
        end, waiting = time.monotonic() + 60 * MINUTES, []
        while time.monotonic() < end or len(done) < 3:
            next_s = time.monotonic() + EVERY_S
            waiting = waiting or draw.sample(FAULTS, len(FAULTS))
            words = waiting.pop()
            begin = time.monotonic()
            disturb(job, words[0], words[1:], for_s=2.0)
            took = time.monotonic() - begin
            done.append(" ".join(words))
            assert job.process.poll() is None, job.output[-3000:]
            poll_for(lambda: len(replicas_of(job.process.pid)) == 8, LIMIT_S, "all replicas")
            time.sleep(max(next_s - time.monotonic(), 1.0))
            measured.append(sizes(job))
            print(json.dumps({"fault": done[-1], "took": round(took, 3), **measured[-1]}), flush=True)
        children = psutil.Process(job.process.pid).children(recursive=True)
        files = memfds_of(job)
        assert files
        job.process.kill()
        poll_for(lambda: not any(each.is_running() for each in children), 60.0, "the end of all")
    assert flat(measured) == []
    assert len(list(Path("/dev/shm").iterdir())) <= measured[0]["job"]["shared"]
    assert files.isdisjoint(memfds(Path("/proc").glob("[0-9]*")))


def saves_of(run_dir: Path) -> int:
    return sum(event["event"] == "saved" for event in events_of(run_dir))


def flat(measured: list[dict[str, Sizes]]) -> list[str]:
    """Return a sentence for each size that is larger in the last third than in the first, by more than chance."""
    third = max(1, len(measured) // 3)
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in measured:
        for name, figures in each.items():
            for figure, value in figures.items():
                series[name, figure].append(value)
    # A process that has loaded a checkpoint uses more memory than one that began without, and at the first death a
    # driver connects to the coordinator, for which it needs threads and files.
    room = {"memory": 80.0, "threads": 2, "files": 12, "run": 12, "temporary": 3, "shared": 0, "memfds": 2}
    grown = []
    for (name, figure), values in series.items():
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        if last > first * (1.1 if figure == "memory" else 1.0) + room[figure]:
            grown.append(f"{figure} of {name} grew from {first:.0f} to {last:.0f}")
    return grown
