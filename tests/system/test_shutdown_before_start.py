"""Jobs that never begin."""

import threading
import time
import uuid

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines import embedded
from persia_cli.engines.job import prepare_run_dir
from persia_cli.errors import ConfigError, PersiaError, UserError, WireError
from persia_cli.kernels.needed import SERVER
from persia_cli.kernels.warm import warm
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.start import RoleStart, run_coordinator, run_role
from persia_cli.wire.loop import Loop
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for
from tests.support.jobs import plan
from tests.support.small import WORDS

LIMIT_S = 3
"""Far longer than it takes the one replica that there is to join."""


def test_a_replica_that_never_joins_is_named_and_the_others_are_sent_away(tmp_path):
    warm(SERVER)  # kernels are compiled before a replica joins
    job = plan([*WORDS, f"cluster.start_timeout_s={LIMIT_S}", "cluster.embedding_servers=2"], tmp_path / "run")
    prepare_run_dir(job)
    address = f"inproc://{uuid.uuid4()}"
    errors: dict[str, BaseException] = {}

    def coordinate() -> None:
        try:
            run_coordinator(context, address, job.run, job.job)
        except PersiaError as error:
            errors["coordinator"] = error

    with Context() as context:
        coordinator = threading.Thread(target=coordinate, name="coordinator")
        coordinator.start()
        with pytest.raises(WireError) as told:
            run_role(context, RoleStart("embedding-server", 0, address))
        coordinator.join()

    missing = "embedding-server-1, embedding-worker-0, data-loader-0, nn-worker-0"
    sentence = f"not joined after {LIMIT_S} s: {missing}; see their logs (cluster.start_timeout_s raises the limit)"
    assert str(errors["coordinator"]) == sentence
    assert errors["coordinator"].exit_code == 1
    assert str(told.value) == (f"coordinator at {address} refused a place in the job: the job has ended: {sentence}")


def test_a_signal_to_a_replica_that_waits_for_others_ends_the_job_to_go_on_later(tmp_path):
    job = plan(WORDS, tmp_path / "run")
    prepare_run_dir(job)
    address = f"inproc://{uuid.uuid4()}"
    sessions: list[CoordinatorSession] = []

    def signal_it(session: CoordinatorSession) -> None:
        sessions.append(session)
        session.signals.append("SIGTERM")

    with Context() as context:
        coordinator = threading.Thread(target=run_coordinator, args=(context, address, job.run, job.job))
        coordinator.start()
        run_role(context, RoleStart("data-loader", 0, address), signal_it)
        coordinator.join()
    [stopped] = [event for event in read_journal(tmp_path / "run" / EVENTS) if event.get("phase") == "stopped"]
    assert (stopped["signal"], stopped["replica"]) == ("SIGTERM", "data-loader-0")
    assert sessions[0].goes_on


def test_a_signal_that_comes_when_the_job_has_ended_changes_nothing():
    with Context() as context:
        loop = Loop(context, "data-loader-0")
        session = CoordinatorSession(loop, f"inproc://{uuid.uuid4()}", "data-loader", 0)
        session.stop = True
        session.signals.append("SIGTERM")
        poll_for(lambda: loop.poll(0.05) or not session.signals, 10.0, "the signal to be read")
        loop.close()
    assert not session.goes_on


def test_a_second_run_in_a_run_directory_is_refused(tmp_path):
    job = plan(WORDS, tmp_path / "run")
    prepare_run_dir(job)
    with pytest.raises(UserError) as refused:
        prepare_run_dir(job)
    assert str(refused.value) == f"{tmp_path / 'run'} already contains a run; choose another --run-dir or remove it"


def test_a_second_nn_worker_in_one_process_is_refused():
    with pytest.raises(ConfigError) as refused:
        compose_run(["cluster=embedded", "cluster.nn_workers=2"])
    assert "cluster=embedded runs in one process and has exactly one NN worker, not 2; use cluster=local for more" in (
        str(refused.value)
    )


def test_a_caller_that_fails_before_the_roles_have_started_ends_the_job_with_its_own_failure(tmp_path):
    def fail() -> None:
        if threading.active_count() > before:  # the roles' threads are there
            raise UserError("the screen is too small")

    before = threading.active_count()
    began = time.monotonic()
    with pytest.raises(UserError, match="the screen is too small"):
        embedded.launch(plan([*WORDS, "cluster.start_timeout_s=60"], tmp_path / "run"), fail)
    assert time.monotonic() - began < 30
