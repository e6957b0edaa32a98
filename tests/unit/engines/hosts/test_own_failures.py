"""What fails at the end that follows a job: the job goes on, and a start that is refused leaves no trace."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from persia_cli.commands import hosts_job
from persia_cli.commands.follow import attach, stop
from persia_cli.commands.followed import going_on
from persia_cli.commands.hosts_job import LeftAloneError, OverdueError
from persia_cli.commands.progress import following
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.engines.hosts import begin
from persia_cli.engines.hosts.begin import STATE, begun, gone_on
from persia_cli.engines.hosts.connection import SshProcess
from persia_cli.engines.hosts.job import HostsJob
from persia_cli.engines.hosts.rollback import newest_step
from persia_cli.engines.job import recorded_failure
from persia_cli.engines.signals import JobSignals, PreemptedNow
from persia_cli.errors import ConfigError, DiskError, RoleError, UserError
from tests.conftest import poll_for

RUN = compose_run(["cluster=hosts", "cluster.hosts=[a,b]", "checkpoint.path=s3://bucket/x"])


def quiet(text: str) -> None:
    """In place of what tells people."""


def hang_up() -> None:
    """The terminal ends, and what cleans up the screen fails."""
    try:
        raise LeftAloneError
    finally:
        raise OSError(5, "Input/output error")


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fail", "running", "raised", "stopped"),
    [
        (hang_up, True, LeftAloneError, False),
        (failing(LeftAloneError()), True, LeftAloneError, False),
        (failing(RoleError("b has not been reached")), True, RoleError, False),
        (failing(DiskError("no room")), True, DiskError, False),
        (failing(BrokenPipeError()), True, BrokenPipeError, False),
        (failing(RoleError("embedding-server-0 was killed")), False, RoleError, True),
        (failing(OverdueError("too long")), True, OverdueError, True),
        (failing(KeyboardInterrupt()), True, KeyboardInterrupt, True),
        (failing(PreemptedNow()), True, PreemptedNow, True),
    ],
)
def test_only_who_wants_the_end_of_a_job_and_the_jobs_own_failure_end_it(
    fail: Callable[[], None],
    running: bool,
    raised: type[BaseException],
    stopped: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops: list[str] = []
    job: Any = SimpleNamespace(placement={}, running=running, run_dir=tmp_path, stop=lambda: stops.append("stopped"))
    monkeypatch.setattr(hosts_job, "to_its_end", lambda job, signals: fail())
    with pytest.raises(raised) as found:
        hosts_job._follow(job, JobSignals())
    assert bool(stops) == stopped
    if running and not stopped and raised is not LeftAloneError:
        assert f"The job goes on: persia attach {tmp_path}" in found.value.__notes__[0]


def test_nothing_is_said_to_be_stopped_that_may_still_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = SimpleNamespace(placement={}, running=True, run_dir=tmp_path, stop=lambda: ["loader-0 on b"])
    monkeypatch.setattr(hosts_job, "to_its_end", lambda job, signals: failing(KeyboardInterrupt())())
    with pytest.raises(RoleError, match=f"may still run; persia stop {tmp_path} --now tries again"):
        hosts_job._follow(job, JobSignals())


class Refused(HostsJob):
    """A job whose machines refuse to start it."""

    def start(self, say_start: Callable[[str], None]) -> None:
        raise UserError("checkpoint.path has no credentials")

    def stop(self, at_once: bool = False) -> list[str]:
        """Nothing was started."""
        return []


def test_the_end_of_the_terminal_gives_up_a_start_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stops: list[bool] = []

    class HungUp(HostsJob):
        def start(self, say_start: Callable[[str], None]) -> None:
            os.kill(os.getpid(), signal.SIGHUP)

        def stop(self, at_once: bool = False) -> list[str]:
            stops.append(at_once)
            return []

    monkeypatch.setattr(begin, "HostsJob", HungUp)
    with pytest.raises(typer.Exit) as ended:
        hosts_job.train_on_hosts(RUN, tmp_path / "run")
    assert ended.value.exit_code == 130
    said = " ".join(capfd.readouterr().err.split())
    assert "the terminal is gone, so the start is given up, and what had begun is stopped; nothing was saved" in said
    assert "the job goes on" not in said
    assert stops == [False]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_first_start_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = compose_run(["cluster=hosts"])
    with pytest.raises(ConfigError, match="needs machines"), begun(nowhere, tmp_path / "run", quiet, quiet):
        pytest.fail("it has not started")
    monkeypatch.setattr(begin, "HostsJob", Refused)
    for _ in range(2):
        with pytest.raises(UserError, match="no credentials"), begun(RUN, tmp_path / "run", quiet, quiet):
            pytest.fail("it has not started")
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="no credentials"), begun(RUN, tmp_path / "run", quiet, quiet):
        pytest.fail("it has not started")
    assert list(tmp_path.rglob("*")) == [tmp_path / "run"], "a folder that was there stays"


def test_a_second_interrupt_kills_what_the_first_one_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[bool] = []

    def stop(at_once: bool = False) -> None:
        stops.append(at_once)
        if not at_once:
            raise KeyboardInterrupt

    job: Any = SimpleNamespace(placement={}, running=True, run_dir=tmp_path, stop=stop)
    monkeypatch.setattr(hosts_job, "to_its_end", lambda job, signals: failing(KeyboardInterrupt())())
    with pytest.raises(KeyboardInterrupt):
        hosts_job._follow(job, JobSignals())
    assert stops == [False, True]


def test_a_resume_that_is_refused_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "roles").mkdir()
    (tmp_path / STATE).write_text('{"job": "shop-123456", "starts": 1}\n')
    (tmp_path / "config.yaml").write_text("name: shop\n")
    (tmp_path / "events.jsonl").write_text('{"event": "phase", "phase": "failed", "time": 1}\n')
    (tmp_path / "job.json").write_text("{}\n")

    @contextmanager
    def ended(run_dir: Path, say: Callable[[str], None], replicas: Sequence[str]) -> Iterator[Any]:
        placement = HostsJob(RUN, run_dir, "shop-123456", 1, quiet).placement
        yield SimpleNamespace(running=False, placement=placement, name="shop-123456", number=1)

    monkeypatch.setattr(begin, "found", ended)
    monkeypatch.setattr(begin, "HostsJob", Refused)
    before = content(tmp_path)
    changed: Run = RUN.model_copy(update={"seed": 99})
    for _ in range(2):
        with pytest.raises(UserError, match="no credentials"), gone_on(changed, tmp_path, quiet, quiet):
            pytest.fail("it has not started")
        assert content(tmp_path) == before


@pytest.mark.parametrize("damaged", ["null", "[]", "{}", '{"job": "a", "starts": null}', "{"])
@pytest.mark.parametrize("command", [attach, stop])
def test_a_damaged_note_of_a_job_is_the_users_and_named(
    command: Callable[..., None], damaged: str, tmp_path: Path
) -> None:
    (tmp_path / STATE).write_text(damaged)
    with pytest.raises(UserError, match=r"hosts\.json is damaged: it does not say which job"):
        command(tmp_path)


@pytest.mark.parametrize(
    "damaged", ['{"time": 1.0, "phase": "failed"}', '{"time": 1.0, "event": "saved", "phase": "failed"}']
)
def test_a_damaged_record_is_the_users_and_named(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(damaged + "\n")
    for reading in (going_on, recorded_failure, newest_step, shown):
        with pytest.raises(UserError, match="is damaged or from another version of persia: the key"):
            reading(tmp_path)


def shown(run_dir: Path) -> None:
    """Show the progress of a job, as it is recorded."""
    with following(Console(force_terminal=True), run_dir, Any, 1) as follow:  # type: ignore[arg-type]
        follow()


def test_another_command_that_started_it_meanwhile_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / STATE).write_text('{"job": "shop-123456", "starts": 1}\n')

    @contextmanager
    def ended(run_dir: Path, say: Callable[[str], None], replicas: Sequence[str]) -> Iterator[Any]:
        placement = HostsJob(RUN, run_dir, "shop-123456", 1, quiet).placement
        yield SimpleNamespace(running=False, placement=placement, name="shop-123456", number=1)
        (run_dir / STATE).write_text('{"job": "shop-123456", "starts": 2}\n')
        (run_dir / "job.json").write_text("the other's\n")

    monkeypatch.setattr(begin, "found", ended)
    with pytest.raises(UserError, match="another command has just started"), gone_on(RUN, tmp_path, quiet, quiet):
        pytest.fail("it was started twice")
    assert (tmp_path / "job.json").read_text() == "the other's\n"


def lines_of(script: str) -> tuple[list[dict[str, Any]], SshProcess]:
    """What a session reports that is this script of a shell, until it ends; the process is closed."""
    process, found = SshProcess(["/bin/sh", "-c", script]), list[dict[str, Any]]()

    def has_ended() -> bool:
        found.extend(process.lines())
        return process.exit_code is not None

    poll_for(has_ended, 10.0, "the end of the session")
    found.extend(process.lines())
    process.close()
    return found, process


def test_what_a_shell_says_first_is_no_report() -> None:
    found, _ = lines_of("""echo Welcome to h1; echo; echo 17; echo '{"facts": {}}'; echo '{"caught_up": true}'""")
    assert found == [{"facts": {}}, {"caught_up": True}]


def test_a_session_that_says_what_is_no_report_is_ended() -> None:
    found, process = lines_of("""echo '{"facts": {}}'; echo '{"fa'; echo '{}'; exec sleep 60""")
    assert found == [{"facts": {}}]
    assert process.exit_code not in (0, None)
    assert "it has sent what is no report" in process.why
