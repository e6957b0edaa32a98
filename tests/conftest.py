"""Rules for all tests: a test leaves no process, thread or socket behind."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import psutil
import pytest
import zmq

from tests.support.shared import shared

# With some extras installed, torch shows bars of tqdm, whose thread outlives them. A bar without it is the same.
with suppress(ImportError):
    import tqdm

    tqdm.tqdm.monitor_interval = 0

# A busy machine is no reason to fail; pytest-timeout bounds every test.
hypothesis.settings.register_profile("persia", deadline=None)
hypothesis.settings.load_profile("persia")

SETTLE_S = 5.0
JOBS = ("system", "recipes", "accuracy", "chaos")
"""Folders of tests that run whole jobs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the system tier: those that run whole jobs or start role processes."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in JOBS or item.get_closest_marker("processes"):
            item.add_marker("system")


def poll_for(condition: Callable[[], object], within_s: float, what: str) -> None:
    """Wait until the condition holds; fail the test with `what` if it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:g} s: {what}")
        time.sleep(0.01)


def _sockets() -> set[str]:
    """The sockets and event files of this process, by their names in /proc."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(("socket:", "anon_inode:[eventfd]")):
            found.add(f"{entry.name} {target}")
    return found


@pytest.fixture(scope="session", autouse=True)
def _handled_interrupts() -> None:
    """Make child processes handle Ctrl-C even if a shell started pytest in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _zero_copy_thread() -> None:
    """Make pyzmq start its thread for zero-copy messages, so that no test seems to have left it."""
    zmq.Frame(bytes(1 << 20), copy=False)


def _has_children() -> bool:
    """Return True if this process has a child: the system answers a hundred times faster than a search."""
    for thread in Path("/proc/self/task").iterdir():
        try:
            if (thread / "children").read_bytes():
                return True
        except (ProcessLookupError, FileNotFoundError):
            continue
    return False


def _children() -> set[psutil.Process]:
    """The processes below this one, except the one that multiprocessing runs until its end."""
    return {
        child
        for child in (psutil.Process().children(recursive=True) if _has_children() else ())
        if child.is_running() and "multiprocessing.resource_tracker" not in " ".join(_command_line(child))
    }


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    threads, sockets = set(threading.enumerate()), _sockets()
    children = _children()
    yield
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        left = [
            *(f"thread {thread.name}" for thread in set(threading.enumerate()) - threads if thread.is_alive()),
            *(f"process {child.pid}" for child in _children() - children),
            *(f"socket {name}" for name in _sockets() - sockets),
        ]
        if not left:
            return
        time.sleep(0.02)
    pytest.fail(f"left behind: {', '.join(left)}")


def shared_data() -> Path | None:
    """The folder of real data sets, if this machine has it."""
    named = os.environ.get("PERSIA_TEST_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; skips the test if there is none."""
    folder = shared_data()
    if folder is None:
        pytest.skip("no real data: set PERSIA_TEST_DATA to a folder with criteo/ and adult/")
    return folder


@pytest.fixture(scope="session")
def criteo_rows(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real Criteo rows as Parquet, prepared by the recipe."""
    from persia_cli.data.prepare.recipe import PrepareOptions, load_recipe

    source = real_data / "criteo" / "criteo_kaggle_mix.tsv.gz"

    def make(folder: Path) -> None:
        load_recipe("criteo").prepare(source, folder / "rows", PrepareOptions(), lambda done, total: None)

    return shared(tmp_path_factory, "criteo", make) / "rows"
