"""A job that is told to end through the command that follows it, whatever that is at."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persia_cli.commands.end_by_follower import end_by_follower
from persia_cli.commands.followed import going_on
from persia_cli.config.compose import compose_run
from persia_cli.config.record import write_run
from persia_cli.engines.hosts import begin
from persia_cli.engines.hosts.begin import STATE, gone_on
from persia_cli.engines.hosts.follower import FILE, Follower, follower_of, note_end, note_follower
from persia_cli.engines.hosts.job import FIRST, HostsJob
from persia_cli.errors import PreemptedError, RoleError
from persia_cli.observe.history import CONFIG
from persia_cli.plan.job import Job

RUN = compose_run(["cluster=hosts", "cluster.hosts=[a,b]", "checkpoint.path=s3://bucket/x"])
FOLLOWING = """
import signal, sys, time
from pathlib import Path
from persia_cli.engines.hosts.follower import note_end, note_follower
run_dir, code = Path(sys.argv[1]), sys.argv[2]
def end(number, frame):
    code == "killed" or code == "taken back" or note_end(run_dir, int(code))
    code == "taken back" and (run_dir / "follower.json").unlink()
    sys.exit(1)
for each in (signal.SIGUSR1, signal.SIGINT):
    signal.signal(each, end)
note_follower(run_dir)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_run(RUN, tmp_path / CONFIG)
    (tmp_path / STATE).write_text('{"job": "shop-123456", "starts": 1}\n')
    return tmp_path


@contextmanager
def following(run_dir: Path, code: str) -> Iterator[Follower]:
    """A command that follows the job, and ends with this code when it is told to."""
    words = [sys.executable, "-c", FOLLOWING, str(run_dir), code]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        known = follower_of(run_dir)
        assert known is not None
        assert known.lives_here
        try:
            yield known
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("code", "at_once", "raised"),
    [
        ("75", False, PreemptedError),
        ("130", True, KeyboardInterrupt),
        ("1", False, RoleError),
        ("taken back", False, PreemptedError),
        ("taken back", True, KeyboardInterrupt),
    ],
)
def test_a_job_ends_as_its_command_does(code: str, at_once: bool, raised: type[BaseException], run_dir: Path) -> None:
    with following(run_dir, code) as follower, pytest.raises(raised):
        end_by_follower(run_dir, follower, at_once)
    known = follower_of(run_dir)
    assert known is None or not known.lives_here


def test_a_command_that_is_suspended_ends_its_job_too(run_dir: Path) -> None:
    with following(run_dir, "75") as follower:
        follower.process.send(signal.SIGSTOP)
        with pytest.raises(PreemptedError):
            end_by_follower(run_dir, follower, at_once=False)


@pytest.mark.parametrize(("code", "is_over"), [("0", True), ("killed", False)])
def test_a_job_whose_command_was_killed_is_not_over(code: str, is_over: bool, run_dir: Path) -> None:
    with following(run_dir, code) as follower:
        assert end_by_follower(run_dir, follower, at_once=False) == is_over


def test_only_who_follows_a_job_notes_its_end(run_dir: Path) -> None:
    note_end(run_dir, 1)
    assert follower_of(run_dir) is None
    note_follower(run_dir)
    note_end(run_dir, 75)
    own = follower_of(run_dir)
    assert own is not None
    assert own.code == 75
    (run_dir / FILE).write_text(json.dumps({"pid": 1, "began": 0, "host": own.host, "code": None}))
    note_end(run_dir, 1)
    other = follower_of(run_dir)
    assert other is not None
    assert other.code is None
    assert not other.lives_here, "process 1 is another one than it was"
    (run_dir / FILE).write_text("{")
    assert follower_of(run_dir) is None


def test_a_coordinator_that_ends_before_it_listens_ends_its_start_at_once(run_dir: Path) -> None:
    job = HostsJob(RUN, run_dir, "shop-123456", 1, lambda text: None)
    mirror = SimpleNamespace(address="")
    told: Any = SimpleNamespace(
        there={FIRST}, ended={FIRST: 75}, cancelled=set(), poll=lambda: None, mirror=mirror, caught_up=True
    )
    job._connections = {"a": told, "b": told}
    with pytest.raises(PreemptedError):
        job._await_address()


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_start_that_left_no_record_leaves_that_of_the_one_before(
    has_begun: bool, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = json.dumps({"event": "saved", "step": 100, "path": "s3://bucket/x/100", "time": 1.0})
    (run_dir / "events.jsonl").write_text(f"{saved}\n")

    @contextmanager
    def ended(*ignored: object) -> Iterator[Any]:
        placement = HostsJob(RUN, run_dir, "shop-123456", 1, print).placement
        yield SimpleNamespace(running=False, placement=placement, name="shop-123456", number=1)

    def interrupted(say: Callable[[str], None]) -> None:
        assert not (run_dir / "events.jsonl").exists()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(begin, "found", ended)
    monkeypatch.setattr(HostsJob, "start", lambda job, say: interrupted(say))
    monkeypatch.setattr(HostsJob, "stop", lambda job, at_once=False: [])
    monkeypatch.setattr(HostsJob, "has_begun", has_begun)
    with pytest.raises(KeyboardInterrupt), gone_on(RUN, run_dir, print, print):
        pytest.fail("it has not started")
    assert going_on(run_dir) == f"the model is saved in s3://bucket/x/100; persia resume {run_dir} goes on from there"


def test_a_job_that_has_saved_nothing_yet_goes_on_from_where_it_began(run_dir: Path) -> None:
    assert going_on(run_dir).startswith("nothing was saved")
    job = Job("train", str(run_dir), "s3://bucket/x/100", 3200, 32, 200, 1, first_step=100)
    (run_dir / "job.json").write_bytes(job.to_json())
    assert going_on(run_dir) == f"the model is saved in s3://bucket/x/100; persia resume {run_dir} goes on from there"
    write_run(compose_run(["cluster=local"]), run_dir / CONFIG)
    assert going_on(run_dir).startswith("nothing was saved"), "the checkpoint may be another run's"
