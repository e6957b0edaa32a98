"""Deaths for lack of memory are told from other deaths by SIGKILL, as the counter of the control group says."""

import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.launch.memory_kills import ENDING_S, MemoryKills, counter_of
from tests.support.memory_group import memory_group

EVENTS = "low 0\nhigh 0\nmax 7\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def process(folder: Path, groups: str, mounts: list[str]) -> Path:
    """Files of /proc of a process that is in these groups."""
    (folder / "proc").mkdir()
    (folder / "proc/cgroup").write_text(groups)
    (folder / "proc/mountinfo").write_text("".join(f"{line.format(folder)}\n" for line in mounts))
    return folder / "proc"


VERSION_2 = "41 31 0:38 / {}/sys rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
VERSION_1 = "35 31 0:32 / {}/sys/memory rw,relatime - cgroup cgroup rw,memory"
OTHER = "32 31 0:29 / {}/sys/cpu rw,relatime - cgroup cgroup rw,cpu"


@pytest.mark.parametrize(
    ("groups", "mounts", "counter", "expected"),
    [
        ("0::/job.slice/one\n", [VERSION_2], "sys/job.slice/one/memory.events", True),
        ("0::/\n", [VERSION_2], "sys/memory.events", True),  # in a container
        ("0::/job.slice/one\n", [VERSION_2], "sys/job.slice/memory.events", True),  # no controller of its own
        ("0::/\n", [VERSION_2], "sys/memory.peak", False),  # the system as a whole is in no group
        ("0::/../other\n", [VERSION_2.replace(" / ", " /own ", 1)], "sys/memory.events", False),
        (
            "4:cpu,memory:/one\n1:cpu:/\n0::/\n",
            [OTHER, VERSION_1, VERSION_2],
            "sys/memory/one/memory.oom_control",
            True,
        ),
        (
            "4:memory:/docker/one\n",
            [VERSION_1.replace(" / ", " /docker/one ", 1)],
            "sys/memory/memory.oom_control",
            True,
        ),
        ("4:memory:/\n0::/one\n", [OTHER, VERSION_2], "sys/one/memory.events", True),
        ("1:cpu:/\n", [OTHER], "sys/cpu/memory.oom_control", False),
    ],
)
def test_the_counter_is_that_of_the_group(
    tmp_path: Path, groups: str, mounts: list[str], counter: str, expected: bool
) -> None:
    found = tmp_path / counter
    found.parent.mkdir(parents=True)
    found.write_text((EVENTS if found.name == "memory.events" else CONTROL).format(2))
    assert counter_of(process(tmp_path, groups, mounts)) == (found if expected else None)


def test_a_system_without_groups_says_nothing(tmp_path: Path) -> None:
    assert counter_of(tmp_path) is None
    kills = MemoryKills(None)
    kills.look()
    assert kills.explain_death() is None


def test_a_counter_that_goes_away_or_was_never_kept_says_nothing(tmp_path: Path) -> None:
    counter = tmp_path / "memory.oom_control"
    counter.write_text("oom_kill_disable 0\nunder_oom 0\n")  # before Linux 4.13
    kills = MemoryKills(counter)
    assert kills.explain_death() is None
    counter.write_text(CONTROL.format(3))
    assert kills.explain_death() is False  # nobody knows when those three were
    counter.unlink()
    assert kills.explain_death() is None


def test_each_kill_explains_one_death_and_only_for_a_while(tmp_path: Path) -> None:
    counter, now = tmp_path / "memory.events", [0.0]

    def killed(times: int) -> None:
        counter.write_text(EVENTS.format(times))

    killed(5)
    kills = MemoryKills(counter, lambda: now[0])
    assert kills.explain_death() is False  # those were before
    killed(7)
    assert [kills.explain_death() for _ in range(3)] == [True, True, False]
    killed(8)
    kills.look()
    now[0] = ENDING_S - 1
    killed(9)
    kills.look()
    now[0] = ENDING_S + 1
    assert [kills.explain_death() for _ in range(2)] == [True, False]  # the older one was of somebody else


CHILDREN = """
import os, subprocess, sys
from pathlib import Path
from persia_cli.launch.memory_kills import MemoryKills, counter_of

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
kills = MemoryKills(counter_of())
by_hand, by_the_system = "import os; os.kill(os.getpid(), 9)", "b'.' * (600 << 20)"
for code in (by_hand, by_the_system, by_hand):
    ended = subprocess.run([sys.executable, "-c", code])
    print(ended.returncode, kills.explain_death())
"""


def test_a_child_whose_memory_ran_out_is_told_from_one_that_was_killed() -> None:
    with memory_group(200 << 20) as group:
        command = [sys.executable, "-c", CHILDREN, str(group.folder)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.splitlines() == ["-9 False", "-9 True", "-9 False"]
