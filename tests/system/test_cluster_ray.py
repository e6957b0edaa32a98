"""`cluster=ray`: one command trains on machines of a Ray cluster, which share nothing, and goes on when they die."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import result_of
from persia_cli.wire.secret import new_keys, write_keys
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES
from tests.support.hosts import Host, needs_hosts
from tests.support.jobs import evaluation, losses, train
from tests.support.ray_jobs import ENDLESS, LIMIT_S, Command, cluster, driver_on, nothing_runs
from tests.support.ray_nodes import ENVIRONMENT, actor_of, commands_on, needs_ray, replicas_on
from tests.support.s3 import store_on
from tests.support.secrecy import leaks_in_files, leaks_in_processes
from tests.support.small import WORDS
from tests.support.traced import read_trace

pytestmark = [pytest.mark.slow, needs_hosts, needs_ray, pytest.mark.timeout(600)]

KEYS, TRACE = Path("/tmp/job.keys"), Path("/tmp/steps.json")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[list[Host], str]]:
    with cluster(2, tmp_path) as made:
        yield made


def found(hosts: list[Host], role: str) -> psutil.Process:
    """The process of the only replica of a role."""
    [process] = [each for host in hosts for each in replicas_on(host, role)]
    return process


def test_a_job_on_two_nodes_has_the_bits_of_one_and_hides_its_secret(
    two: tuple[list[Host], str], tmp_path: Path
) -> None:
    hosts, address = two
    keys = new_keys()
    write_keys(hosts[0].root / KEYS.relative_to("/"), keys)
    words = [*WORDS, *NO_FILES]
    with Command(hosts[0], address, [*words, "--trace", str(TRACE)], tmp_path / "out", key_file=KEYS) as command:
        command.wait(lambda: command.events("ready"), "all replicas")
        everything = [process for host in hosts for process in commands_on(host)]
        assert len([process for process in everything if "launch-role" in process.cmdline()]) == 1 + 2 * 4
        assert not list(leaks_in_processes(keys, everything))
        assert command.end() == 0, command.output
        there, here = result_of(command.run_dir), train([*words, "cluster=local"], tmp_path / "here")
        assert losses(there) == losses(here)
        assert evaluation(there)["auc"] == evaluation(here)["auc"]
        assert f"{TRACE}: steps " in command.output
        assert not any(text in command.output for text in ("without ", "in part "))
        [ready] = command.events("ready")
        on = {each["name"]: each["host"] for each in ready["replicas"]}
        assert on["coordinator-0"] == "host1"
        assert set(on.values()) == {"host1", "host2"}
        assert on["embedding-worker-0"] == on["embedding-server-0"] != on["nn-worker-0"] == on["data-loader-0"]
        logs = {path.stem: path.read_text() for path in (command.run_dir / "roles").iterdir()}
        assert set(logs) == set(on)
        assert {span.replica for span in read_trace(hosts[0].root / TRACE.relative_to("/"))} == set(on) - {
            "coordinator-0"
        }
        assert all(keys.fingerprint in text for text in logs.values())
        (hosts[0].root / KEYS.relative_to("/")).unlink()
        assert leaks_in_files(keys, [host.root / "tmp" for host in hosts]) == []
        poll_for(lambda: nothing_runs(hosts), 10.0, "the end of all roles")


def test_a_worker_that_dies_returns_and_nothing_outlives_the_driver(
    two: tuple[list[Host], str], tmp_path: Path
) -> None:
    hosts, address = two
    with Command(hosts[0], address, ENDLESS, tmp_path / "out") as command:
        command.wait(lambda: command.last_step() > 0, "steps")
        found(hosts, "embedding-worker").kill()
        command.wait(lambda: len(command.events("recovered")) == 1, "a new process in place")
        command.wait_for_more()
        assert [event["replica"] for event in command.events("recovered")] == ["embedding-worker-0"]
        driver_on(hosts[0]).kill()
        poll_for(lambda: nothing_runs(hosts), 30.0, "the end of all roles")
        assert command.end() == 1
        assert "the driver of the job was killed, and all has ended with it" in command.output


def test_a_mistake_or_too_little_space_ends_the_job_at_once(two: tuple[list[Host], str], tmp_path: Path) -> None:
    hosts, address = two
    with Command(hosts[0], address, [*WORDS, "checkpoint.at_end=true"], tmp_path / "out") as command:
        assert command.end() == 2, command.output
        assert "save its part of checkpoints in /tmp/run, but its machine, host2," in (" ".join(command.output.split()))
        assert "Traceback" not in command.output
        assert "rollback" not in command.output
    wide = ["cluster.resources.nn_worker.cpus=100", "cluster.start_timeout_s=3", *WORDS]
    with Command(hosts[0], address, wide, tmp_path / "wide", Path("/tmp/wide")) as command:
        assert command.end() == 1, command.output
        said = " ".join(command.output.split())
        assert (
            "no space for the job for 3 s (cluster.start_timeout_s): no machine is large enough for data-loader-0"
            in said
        )
        assert "Traceback" not in said
        poll_for(lambda: nothing_runs(hosts), 10.0, "the end of all roles")


def began_again(command: Command, times: int) -> None:
    """Wait until the job has returned to a checkpoint so many times, and trains again."""
    command.wait(lambda: command.output.count("the job goes on") == times, "the way back to a checkpoint")
    earlier = command.run_dir / "earlier" / ("start" if times == 1 else f"start-{times}")
    command.wait(lambda: earlier.exists() and command.events("ready"), "a new beginning")
    command.wait_for_more()


def test_lost_memory_actors_and_machines_roll_back_and_a_signal_saves(
    tmp_path: Path,
) -> None:
    with cluster(3, tmp_path) as (hosts, address), store_on(hosts[0]) as saved:
        words = [*ENDLESS, f"checkpoint.path='{saved}'", "checkpoint.every_steps=50"]
        with Command(hosts[0], address, words, tmp_path / "out") as command:
            command.wait(lambda: command.events("saved"), "a checkpoint")
            found(hosts, "embedding-server").send_signal(signal.SIGSEGV)
            began_again(command, 1)
            actor_of(found(hosts, "data-loader")).kill()
            began_again(command, 2)
            on = {each["name"]: each["host"] for each in command.events("ready")[0]["replicas"]}
            role = "embedding-server-0" if on["embedding-server-0"] != "host1" else "nn-worker-0"
            next(host for host in hosts if host.name == on[role]).kill()
            began_again(command, 3)
            command.process.send_signal(signal.SIGTERM)
            assert command.end() == 75, command.output
    assert "persia resume" in command.output


FREE = """
import logging, ray
ray.init(address={address!r}, logging_level=logging.ERROR, log_to_driver=False)
print([ray.cluster_resources().get(each) == ray.available_resources().get(each) for each in ("CPU", "memory")])
print({{group["state"] for group in ray.util.placement_group_table().values()}} <= {{"REMOVED"}})
"""


def nothing_is_left(hosts: list[Host], address: str, log: Path) -> None:
    """Wait until no replica runs, and Ray has given nothing to any job."""
    poll_for(lambda: nothing_runs(hosts), 60.0, "the end of all roles")

    def is_free() -> bool:
        with log.open("wb") as output:
            asked = hosts[0].start([sys.executable, "-c", FREE.format(address=address)], output, ENVIRONMENT)
        assert asked.wait(60.0) == 0, log.read_text()
        return log.read_text().split("\n") == ["[True, True]", "True", ""]

    poll_for(is_free, 60.0, f"a free cluster; {log} names what is not")


def test_a_job_outlives_its_command_and_others_show_and_stop_it(two: tuple[list[Host], str], tmp_path: Path) -> None:
    (first, second), address = two
    with store_on(first) as saved:
        words = [*ENDLESS, f"checkpoint.path='{saved}'"]
        with Command(first, address, words, tmp_path / "out") as command:
            command.wait(lambda: command.last_step() > 0, "steps")
            command.process.inner.kill()
            poll_for(lambda: command.process.poll() is not None, 10.0, "the end of the command")
        reached = command.last_step()
        poll_for(lambda: command.last_step() > reached + 5, LIMIT_S, "steps without the command")

        def other(name: str, *more: str) -> Command:
            return Command(first, address, list(more), tmp_path / f"{name}{len(more)}", follows=name)

        with other("attach") as one, Command(first, address, [], tmp_path / "two", follows="attach") as two_:
            for each in (one, two_):
                each.wait(
                    lambda each=each: "weights " in each.output and "training  step " in each.output, "the screen"
                )
            two_.process.send_signal(signal.SIGHUP)
            assert two_.end() == 130
            assert "the job goes on: persia attach /tmp/run" in two_.output
            with other("logs", "embedding-server") as logs:
                assert logs.end() == 0
                assert "are encrypted with the keys" in logs.output
            again = Command(first, address, words, tmp_path / "again")
            assert again.end() == 2
            assert "already contains a run" in again.output
            one.wait_for_more()
            with other("stop") as stop:
                assert stop.end() == 75, stop.output
                assert "everything is stopped; the model is saved in" in stop.output
            assert one.end() == 75, one.output
            assert ": everything is stopped; the model is saved in" in one.output
        nothing_is_left([first, second], address, tmp_path / "free")
        for name, code, said in (("attach", 75, ": everything is stopped"), ("stop", 2, "has ended: persia logs")):
            with other(name) as late:
                assert late.end() == code, late.output
                assert said in late.output
