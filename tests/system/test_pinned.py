"""Roles that are pinned run on their processors, also the next process of one that dies, and the record says so."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.affinity import processors_here
from persia_cli.errors import PreemptedError
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.plan.pinning import as_text, numbers
from tests.conftest import poll_for
from tests.support.launched import ENDLESS, Launched, pids_of

pytestmark = pytest.mark.slow
OWN = sorted(os.sched_getaffinity(0))


def allowed(pid: int) -> set[str]:
    """The processors of every thread of a process."""
    return {as_text(os.sched_getaffinity(thread.id)) for thread in psutil.Process(pid).threads()}


def test_every_thread_runs_on_the_processors_of_its_replica(tmp_path: Path) -> None:
    first, last, every = str(OWN[0]), str(OWN[-1]), as_text(OWN)
    of_node = processors_here().nodes.get(0, every)
    pins = f"cluster.pin={{embedding_server: [{first}, {last}], embedding_worker: {last}, nn_worker: 'node:0'}}"
    with Launched([*ENDLESS, "cluster.embedding_servers=2", pins], tmp_path / "run") as launched:
        pids = launched.wait_for_training()
        assert allowed(pids["embedding-server-0"]) == {first}
        assert allowed(pids["embedding-server-1"]) == {last}
        assert allowed(pids["embedding-worker-0"]) == {last}
        assert allowed(pids["data-loader-0"]) == {every}
        assert allowed(pids["nn-worker-0"]) == {as_text(numbers(of_node) & set(OWN))}
        os.kill(pids["embedding-worker-0"], signal.SIGKILL)
        dead = pids["embedding-worker-0"]
        poll_for(lambda: pids_of(launched.run_dir)["embedding-worker-0"] != dead, 60.0, "a new embedding worker")
        assert allowed(pids_of(launched.run_dir)["embedding-worker-0"]) == {last}
        launched.process.send_signal(signal.SIGTERM)
        assert launched.end(60.0)[0] == PreemptedError.exit_code
    warnings = [event["text"] for event in read_journal(tmp_path / "run" / EVENTS) if event["event"] == "warning"]
    assert any(f"embedding-worker-0 share processors {last} of" in text for text in warnings)
    roles = next(event for event in read_journal(tmp_path / "run" / EVENTS) if event["event"] == "roles")["roles"]
    assert {f"{role['role']}-{role['index']}": role["cpus"] for role in roles if "cpus" in role} == {
        "embedding-server-0": first, "embedding-server-1": last, "embedding-worker-0": last, "nn-worker-0": "node:0",
    }  # fmt: skip
