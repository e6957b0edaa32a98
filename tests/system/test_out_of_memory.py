"""A process that the system kills since memory ran out: the job says so, and says nothing of it of other kills."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.observe.journal import EVENTS, read_journal
from tests.conftest import poll_for
from tests.support.launched import ENDLESS, Launched
from tests.support.memory_group import memory_group

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

LIMIT = 6 << 30
HOG = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
b"." * int(sys.argv[2])
"""
"""Takes so many bytes; somebody of the group has to go."""


def causes(job: Launched) -> dict[str, str]:
    """How each replica died of those that got a new process."""
    return {
        each["replica"]: each["cause"] for each in read_journal(job.run_dir / EVENTS) if each["event"] == "recovered"
    }


def test_a_death_for_lack_of_memory_is_told_from_one_by_hand(tmp_path: Path) -> None:
    words = [*ENDLESS, "cluster.server_memory=shared", "cluster.data_loaders=2"]
    with memory_group(LIMIT) as group, Launched(words, tmp_path / "run") as job:
        group.take(job.process.pid)
        pids = job.wait_for_training()
        # The system chooses this one first, whatever others have.
        Path(f"/proc/{pids['embedding-server-0']}/oom_score_adj").write_text("1000")
        # No more than what that process gives back is lacking.
        wanted = LIMIT - group.in_use + (20 << 20)
        subprocess.run([sys.executable, "-c", HOG, str(group.folder), str(wanted)], timeout=120, check=True)
        poll_for(lambda: "embedding-server-0" in causes(job) or job.process.poll() is not None, 60.0, "the new server")
        os.kill(pids["data-loader-0"], signal.SIGKILL)
        poll_for(lambda: "data-loader-0" in causes(job) or job.process.poll() is not None, 60.0, "the new loader")
        assert causes(job) == {
            "embedding-server-0": "was killed by SIGKILL (probably out of memory)",
            "data-loader-0": "was killed by SIGKILL",
        }
        assert "was killed by SIGKILL (probably out of memory)" in job.output
        os.kill(job.process.pid, signal.SIGINT)
        job.end(within_s=30.0)
