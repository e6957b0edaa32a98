"""The answers of an actor, as the command takes them: logs and ends come once, and failures name their machine."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli import __version__
from persia_cli.engines.ray.followed import ActorReplica
from persia_cli.engines.ray.place import News, PlaceFacts
from persia_cli.errors import ConfigError, RoleError
from persia_cli.plan.job import Replica
from tests.support.fake_ray import ActorUnavailableError, FakeActor, RayActorError, RayTaskError, put_in_place

HERE = PlaceFacts(__version__, "n2", "10.0.0.2")


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)


def replica(folder: Path, *answers: Any) -> ActorReplica:
    """A replica whose actor gives these answers, the first of them already taken."""
    made = ActorReplica(Replica("data-loader", 1), folder / "log", FakeActor(*answers))
    made.poll()
    return made


def test_logs_and_the_end_come_once(tmp_path: Path) -> None:
    said = [News(b"one\n", None), ActorUnavailableError(), News(b"two\n", None), News(b"", -9)]
    made = replica(tmp_path, HERE, None, *said)
    assert made.named == "data-loader-1 on n2"
    made.begin(["launch-role"], "keys")
    for _ in said:
        made.poll()
    assert (made.code, made.runs) == (None, True)
    made.poll()
    made.poll()  # nobody is asked any more
    assert (made.log.read_text(), made.code, made.runs) == ("one\ntwo\n", 128 + 9, False)
    asked = [each for each in made.actor.asked if each[0] == "news"]
    assert asked == [("news", 0), ("news", 4), ("news", 4), ("news", 8)]


def test_an_actor_that_is_lost_is_told_from_an_end(tmp_path: Path) -> None:
    made = replica(tmp_path, HERE, None, News(b"", None), RayActorError("it died\nwith its node"))
    made.begin(["launch-role"], "keys")
    for _ in range(3):
        made.poll()
    assert (made.lost, made.code, made.runs) == ("it died with its node", None, False)


def test_what_does_not_start_names_replica_and_machine(tmp_path: Path) -> None:
    made = replica(tmp_path, HERE, RayTaskError())
    made.begin(["launch-role"], "keys")
    with pytest.raises(
        RoleError, match=r"^data-loader-1 on n2 cannot be started beside its actor: no room for one more "
    ):
        made.poll()
    with pytest.raises(ConfigError, match=r"^n3 \(10\.0\.0\.3\) has persia 0\.0\.9, and this machine .*; install the"):
        replica(tmp_path, PlaceFacts("0.0.9", "n3", "10.0.0.3"))
