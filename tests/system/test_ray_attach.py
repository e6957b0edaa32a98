"""A job on a Ray cluster outlives its command: it is shown again, stopped, and leaves nothing in the cluster."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import poll_for
from tests.support.hosts import Host, needs_hosts
from tests.support.ray_jobs import ENDLESS, LIMIT_S, Command, cluster, driver_on, nothing_runs
from tests.support.ray_nodes import ENVIRONMENT, commands_on, needs_ray
from tests.support.s3 import store_on

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, needs_ray, pytest.mark.timeout(600)]

FREE = """
import logging, ray
ray.init(address={address!r}, logging_level=logging.ERROR, log_to_driver=False)
print([ray.cluster_resources().get(each) == ray.available_resources().get(each) for each in ("CPU", "memory")])
print({{group["state"] for group in ray.util.placement_group_table().values()}} <= {{"REMOVED"}})
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[list[Host], str]]:
    with cluster(2, tmp_path) as made:
        yield made


def nothing_is_left(hosts: list[Host], address: str, log: Path) -> None:
    """Wait until no replica runs, and Ray has given nothing to any job."""
    poll_for(lambda: nothing_runs(hosts), 60.0, "the end of all roles")

    def is_free() -> bool:
        with log.open("wb") as output:
            asked = hosts[0].start([sys.executable, "-c", FREE.format(address=address)], output, ENVIRONMENT)
        assert asked.wait(60.0) == 0, log.read_text()
        return log.read_text().split("\n") == ["[True, True]", "True", ""]

    poll_for(is_free, 60.0, f"a free cluster; {log} names what is not")


def test_a_job_goes_on_without_its_command_and_is_shown_by_two_others_and_stopped_by_a_third(
    two: tuple[list[Host], str], tmp_path: Path
) -> None:
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


def test_a_command_that_is_killed_while_its_job_starts_leaves_a_whole_job_which_ctrl_c_ends(
    two: tuple[list[Host], str], tmp_path: Path
) -> None:
    (first, second), address = two
    with Command(first, address, ENDLESS, tmp_path / "out") as command:
        noted = command.run_dir / "driver" / "driver.json"
        poll_for(noted.exists, LIMIT_S, "the driver")
        command.process.inner.kill()
        assert not command.events("ready")
    with Command(first, address, [], tmp_path / "attach", follows="attach") as attach:
        attach.wait(lambda: attach.events("ready") and "training  step " in attach.output, "the whole job")
        attach.process.send_signal(signal.SIGINT)
        assert attach.end() == 130, attach.output
        assert "interrupted: everything is stopped" in attach.output
    assert not commands_on(first, "drive")
    nothing_is_left([first, second], address, tmp_path / "free")


def test_with_the_drivers_machine_the_job_ends_and_leaves_nothing_on_the_others(
    two: tuple[list[Host], str], tmp_path: Path
) -> None:
    (first, second), address = two
    with Command(second, address, ENDLESS, tmp_path / "out") as command:
        command.wait(lambda: command.last_step() > 0, "steps")
        assert not nothing_runs([first])
        assert driver_on(second).is_running()
        second.kill()
    nothing_is_left([first], address, tmp_path / "free")
