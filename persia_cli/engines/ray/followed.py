"""Replicas as the command sees them: what is new of each comes here, into its log in the run directory."""

import time
from pathlib import Path
from typing import Any

from persia_cli import __version__
from persia_cli.disk import writing
from persia_cli.engines.job import SIGNALLED
from persia_cli.engines.ray.place import PORTION, News, Place, PlaceFacts
from persia_cli.errors import ConfigError, RoleError, one_line
from persia_cli.plan.job import Replica

POLL_S = 0.25
"""Seconds between two questions to an actor."""
MOST_SAID = 300


class FollowedReplica:
    """A replica of the job; `code` is the exit code of its supervisor once that has ended, as a shell has it."""

    def __init__(self, replica: Replica, log: Path) -> None:
        self.replica, self.log = replica, log
        self.machine: PlaceFacts | None = None
        """Where it is, once that is known."""
        self.begun = False
        self.code: int | None = None
        self.lost = ""
        """Why nothing more can be heard of it, if that is so."""
        self._known = 0

    @property
    def named(self) -> str:
        """Its name, and that of its machine."""
        return f"{self.replica.name} on {self.machine.host}" if self.machine else self.replica.name

    def poll(self) -> None:
        """Take what is new; to be called again and again."""
        raise NotImplementedError

    def begin(self, words: list[str], given: str) -> None:
        """Start its supervisor by words of `persia`; its input is `given`."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send its supervisor a signal."""
        raise NotImplementedError

    @property
    def runs(self) -> bool:
        """True if a process of it may run."""
        return self.begun and self.code is None and not self.lost

    def _take(self, news: News) -> None:
        if news.said:
            with writing(self.log), self.log.open("ab") as log:
                log.write(news.said)
        self._known += len(news.said)
        if news.code is not None:
            self.code = SIGNALLED - news.code if news.code < 0 else news.code


class OwnReplica(FollowedReplica):
    """A replica on this machine, as a child of this process."""

    def __init__(self, replica: Replica, log: Path) -> None:
        super().__init__(replica, log)
        self._place = Place()
        self.machine = self._place.machine()

    def begin(self, words: list[str], given: str) -> None:
        """Start its supervisor."""
        self.begun = True
        self._place.start(words, given)

    def poll(self) -> None:
        """Take what is new."""
        if self.runs:
            self._take(self._place.news(self._known))

    def signal(self, number: int) -> None:
        """Send its supervisor a signal."""
        self._place.signal(number)

    def close(self) -> None:
        """End it."""
        self._place.close()


class ActorReplica(FollowedReplica):
    """A replica beside an actor; no call here waits for the actor."""

    def __init__(self, replica: Replica, log: Path, actor: Any, life: int = 1) -> None:
        """`life` is 2 for the actor that takes the place of one that was lost, and so on."""
        super().__init__(replica, log)
        self.actor, self.life = actor, life
        self._since_s = time.monotonic()
        self._answer: Any = actor.machine.remote()
        self._again_s = 0.0

    @property
    def waits_s(self) -> float:
        """Seconds for which it has been waiting for a machine."""
        return 0.0 if self.machine or self.lost else time.monotonic() - self._since_s

    def begin(self, words: list[str], given: str) -> None:
        """Start its supervisor; if that fails, the next answer says so."""
        self.begun = True
        self._answer = self.actor.start.remote(words, given)

    def poll(self) -> None:
        """Take the answer to the last question, if it has come, and ask the next."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

        if self.lost or self.code is not None:
            return
        now = time.monotonic()
        if self._answer is None:
            if not self.begun or now < self._again_s:
                return
            self._answer = self.actor.news.remote(self._known)
        if not ray.wait([self._answer], timeout=0)[0]:
            return
        answer, self._answer, self._again_s = self._answer, None, now + POLL_S
        try:
            got = ray.get(answer)
        except ActorUnavailableError:
            return  # Ray cannot reach it for the moment, and says if that is for good
        except RayActorError as error:
            self.lost = one_line(error)[:MOST_SAID]
            return
        except RayTaskError as error:
            raise RoleError(
                f"{self.named} cannot be started beside its actor: {one_line(error.cause)[:MOST_SAID]}; every machine "
                f"of the Ray cluster needs persia {__version__}"
            ) from None
        if isinstance(got, PlaceFacts):
            self.machine = self._checked(got)
        elif isinstance(got, News):
            self._take(got)
            if len(got.said) == PORTION:
                self._again_s = now

    def signal(self, number: int) -> None:
        """Send its supervisor a signal."""
        self.actor.signal.remote(number)

    def _checked(self, machine: PlaceFacts) -> PlaceFacts:
        if machine.version != __version__:
            raise ConfigError(
                f"{machine.host} ({machine.address}) has persia {machine.version}, and this machine {__version__}; "
                "install the same on all machines of the Ray cluster"
            )
        return machine
