"""When a job on other machines goes back to its checkpoint, and when its failure is the end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persia_cli.commands import hosts_job
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.engines.hosts import job as jobs
from persia_cli.engines.hosts import rollback
from persia_cli.engines.hosts.job import HostsJob
from persia_cli.engines.hosts.placement import settings_of
from persia_cli.engines.hosts.rollback import run_with_rollback, without_lost
from persia_cli.engines.signals import JobSignals
from persia_cli.errors import KilledError, PersiaError, RoleError, UserError

RUN = compose_run(["cluster=hosts", "cluster.hosts=[a,b,c]", "recovery.max_restarts=2", "recovery.window_s=600"])
DEATH = "embedding-server-0 (process 7 on b) has shown no progress for 30 s"


def dying(*ignored: Any) -> None:
    raise KilledError(DEATH, "embedding-server-0")


def write_saved(run_dir: Path, *steps: int) -> None:
    lines = [json.dumps({"event": "saved", "step": step, "time": 1.0}) for step in steps]
    (run_dir / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_job_goes_back_once_more_before_it_has_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "without_lost", lambda run: (run, []))
    monkeypatch.setattr(rollback.time, "sleep", lambda seconds: None)
    write_saved(tmp_path, 100)
    said: list[str] = []

    def go_on(run: Run) -> None:
        write_saved(tmp_path)  # the record of the new start has saved nothing yet
        if len(said) < 2:
            dying()

    run_with_rollback(dying, go_on, RUN, tmp_path, said.append)
    assert len(said) == 2
    assert all("from the checkpoint of step 100" in text for text in said)
    with pytest.raises(KilledError) as raised:
        run_with_rollback(dying, dying, RUN, tmp_path, said.append)
    assert raised.value.replica == "embedding-server-0", "without any checkpoint there is nothing to go back to"


def test_a_job_goes_back_so_often_and_not_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "without_lost", lambda run: (run, []))
    monkeypatch.setattr(rollback.time, "sleep", lambda seconds: None)
    write_saved(tmp_path, 100)
    said: list[str] = []
    with pytest.raises(KilledError) as raised:
        run_with_rollback(dying, dying, RUN, tmp_path, said.append)
    assert len(said) == 2
    assert "gone back 2 times within 600 s" in raised.value.__notes__[0]


def test_a_job_that_was_told_to_end_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = JobSignals()
    stops: list[str] = []
    job: Any = SimpleNamespace(placement={}, running=False, run_dir=tmp_path, stop=lambda: stops.append("stopped"))

    def to_its_end(job: HostsJob, signals: JobSignals) -> None:
        assert signals.trains
        dying()

    monkeypatch.setattr(hosts_job, "to_its_end", to_its_end)
    with pytest.raises(KilledError):
        hosts_job._follow(job, signals)
    assert not signals.trains, "a signal between two starts ends the command"
    signals.name = "SIGTERM"
    with pytest.raises(RoleError) as raised:
        hosts_job._follow(job, signals)
    assert not isinstance(raised.value, KilledError)
    assert stops == ["stopped", "stopped"]


def test_who_ended_because_the_coordinator_was_silent_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "recorded_failure", lambda run_dir: RoleError(DEATH))
    monkeypatch.setattr(jobs, "SETTLE_S", 0.0)
    job = HostsJob(RUN, tmp_path, "job-123456", 1, lambda text: None)
    job._started = list(job.placement)
    log = "error: embedding-server-0: coordinator at tcp://a:7 has not answered for 30 s (waiting for its news)\n"
    mirror = SimpleNamespace(log_of=lambda name: log)
    codes = {"coordinator-0": 1, "embedding-server-0": 1}
    connection: Any = SimpleNamespace(there=set(), ended=codes, cancelled=set(), poll=lambda: None, mirror=mirror)
    job._connections = dict.fromkeys("abc", connection)
    with pytest.raises(KilledError):
        job.check()


@pytest.mark.parametrize("has_told", [True, False], ids=["told", "cut_off_before_it_told"])
@pytest.mark.parametrize(
    ("recorded", "ended", "kind"),
    [
        (RoleError(DEATH), {}, KilledError),
        (RoleError(DEATH), {"embedding-server-0": 1}, RoleError),
        (UserError("embedding-server-0: cannot write x: no space left on device"), {}, UserError),
        (RoleError("all replicas are alive, yet nothing has moved"), {}, RoleError),
        (RoleError("embedding-server-01 is none of this job"), {}, RoleError),
    ],
)
def test_only_who_does_not_end_takes_the_job_back(
    recorded: PersiaError,
    ended: dict[str, int],
    kind: type[Exception],
    has_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "recorded_failure", lambda run_dir: recorded)
    monkeypatch.setattr(jobs, "SETTLE_S", 0.0)
    job = HostsJob(RUN, tmp_path, "job-123456", 1, lambda text: None)
    mirror = SimpleNamespace(log_of=lambda name: "")
    job._started = list(job.placement)
    names = [replica.name for replica in job.placement] if has_told else []
    codes = {"coordinator-0": recorded.exit_code} | ended
    connection: Any = SimpleNamespace(there=set(names), ended=codes, cancelled=set(), poll=lambda: None, mirror=mirror)
    job._connections = dict.fromkeys("abc", connection)
    with pytest.raises(kind) as raised:
        job.check()
    assert type(raised.value) is kind


def test_who_has_not_joined_is_named_with_its_machine_and_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = RoleError("not joined after 20 s: embedding-server-0, nn-worker-0; see their logs")
    monkeypatch.setattr(jobs, "recorded_failure", lambda run_dir: late)
    monkeypatch.setattr(jobs, "SETTLE_S", 0.0)
    monkeypatch.setattr(jobs, "MOST_LOGS", 1)
    job = HostsJob(RUN, tmp_path, "job-123456", 1, lambda text: None)
    job._started = list(job.placement)
    mirror = SimpleNamespace(log_of=lambda name: f"{name}: waiting for the coordinator at tcp://10.0.0.1:7000\n")
    codes = {"coordinator-0": 1}
    connection: Any = SimpleNamespace(there=set(), ended=codes, cancelled=set(), poll=lambda: None, mirror=mirror)
    job._connections = dict.fromkeys("abc", connection)
    with pytest.raises(KilledError, match=r"^not joined after 20 s") as raised:
        job.check()
    line = "  embedding-server-0: waiting for the coordinator at tcp://10.0.0.1:7000"
    others = f"nn-worker-0 on a: persia logs {tmp_path}"
    assert raised.value.__notes__ == [f"embedding-server-0 on b; the end of its log:\n{line}", others]


def test_a_job_goes_on_where_ssh_still_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "reached", lambda hosts, machines: [host for host in machines if host.ssh != "b"])
    run, lost = without_lost(RUN)
    assert lost == ["b"]
    assert [host.ssh for host in settings_of(run).hosts] == ["a", "c"]
    monkeypatch.setattr(rollback, "reached", lambda hosts, machines: machines[1:])
    with pytest.raises(PersiaError, match="a, which has the record of the run and coordinator-0, is not reached"):
        without_lost(RUN)
