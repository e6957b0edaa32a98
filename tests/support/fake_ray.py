"""A stand-in for Ray, whose actors give a test's answers; it needs no Ray."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from persia_cli.engines.ray import followed


class RayActorError(Exception):
    """In place of Ray's."""


class ActorUnavailableError(RayActorError):
    """In place of Ray's."""


class RayTaskError(Exception):
    """In place of Ray's."""

    cause = OSError("no room for\none more process")


class FakeActor:
    """Answers each call by the next of its answers; errors are raised where they are fetched."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any) -> Callable[[], Any]:
            self.asked.append((name, *given))
            return lambda: self.answers.pop(0)

        return SimpleNamespace(remote=remote)


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every import of Ray get the stand-in."""

    def get(answer: Callable[[], Any]) -> Any:
        got = answer()
        if isinstance(got, Exception):
            raise got
        return got

    ray, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    vars(ray).update(get=get, wait=lambda asked, timeout: (asked, []))
    vars(ray)["util"] = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
    errors = (RayActorError, ActorUnavailableError, RayTaskError)
    vars(exceptions).update({error.__name__: error for error in errors})
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    monkeypatch.setattr(followed, "POLL_S", 0.0)
