"""The process that is killed: the one meant, of this memory domain, and never this one."""

import os
import signal
import subprocess
import sys

from persia_cli.wire.message import ProcessId
from persia_cli.wire.process import kill, process_id, this_process


def test_only_the_very_process_is_killed_also_while_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        meant = process_id(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        others = [
            ProcessId(meant.pid, meant.began - 1, meant.domain),
            ProcessId(meant.pid, meant.began, "far"),
            this_process(),
        ]
        assert not any(kill(each) for each in others)
        assert process.poll() is None
        assert kill(meant)
        assert process.wait(30.0) == -signal.SIGKILL
    assert not kill(meant)
