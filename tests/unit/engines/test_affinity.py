"""A process is kept to processors before anything of it counts them."""

import os
import subprocess
import sys
from pathlib import Path

from persia_cli.engines.affinity import processors_here
from persia_cli.plan.pinning import MachineProcessors, as_text

OWN = sorted(os.sched_getaffinity(0))


def test_a_machine_is_read_from_files_of_linux(tmp_path: Path) -> None:
    for name, text in {"cpu/online": "0-7", "node/node0/cpulist": "0-3", "node/node11/cpulist": "4-7"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "node" / "online").write_text("0,11\n")
    assert processors_here(tmp_path) == MachineProcessors(as_text(OWN), "0-7", {0: "0-3", 11: "4-7"})


PINNED = """
import os, subprocess, sys, threading
import persia_cli.main
from persia_cli.engines.affinity import pin
assert "numpy" not in sys.modules, "its threads are there before the process is pinned"
pin("{text}")
found = []
thread = threading.Thread(target=lambda: found.append(sorted(os.sched_getaffinity(0))))
thread.start(); thread.join()
print(found, sorted(os.sched_getaffinity(0)))
subprocess.run(["grep", "Cpus_allowed_list", "/proc/self/status"])
"""


def test_threads_and_children_keep_to_the_processors() -> None:
    last = OWN[-1]
    code = PINNED.format(text=last)
    ended = subprocess.run([sys.executable, "-uc", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[0] == f"[[{last}]] [{last}]"
    assert ended.stdout.split()[-1] == str(last)
