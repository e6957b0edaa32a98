"""The follower of a server: a process that prepares the versions of a published folder, and names the one to serve.

Workers open a prepared version on a thread while they answer, and exchange it between two requests. A version that
cannot be prepared is refused: it is counted and logged, and the version before is served on. Versions at a URI are
fetched into the working folder first.
"""

import logging
import os
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from persia_cli.errors import PersiaError
from persia_cli.publish.version import fetch, folders_of, served_version
from persia_cli.serving.following import Follower, PreparedVersion
from persia_cli.serving.http.metrics import ServingMetrics
from persia_cli.serving.http.settings import ServerSettings, WorkerFailed, WorkerReady
from persia_cli.serving.http.shared import ServerMemory
from persia_cli.storage.locations import location_of

log = logging.getLogger(__name__)

LOOK_S, REMOTE_LOOK_S = 0.2, 1.0
"""Seconds between two looks at the published folder: on a disk, and at a URI."""
FETCHED = "fetched"
"""Folder of the working folder: the versions of a published folder at a URI."""
AGAIN_S = 5.0
"""Seconds until a refused version is tried again, since a copy may still arrive."""
NICE = 10
"""Priority: workers get the processor first."""


def run(settings: ServerSettings, memory: ServerMemory, part: int, parent: Connection) -> None:
    """Send `WorkerReady` and follow until the parent closes the connection or dies; or send `WorkerFailed` and end."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s follower %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip
    os.nice(NICE)
    following = _Following(settings, memory, part)
    try:
        found = following.begin()
    except Exception as error:
        if not isinstance(error, PersiaError):
            log.error("the follower cannot begin", exc_info=error)
        parent.send(WorkerFailed(error.exit_code if isinstance(error, PersiaError) else 1, str(error)))
        sys.exit(1)
    parent.send(WorkerReady("", str(found.version.version)))
    while not parent.poll(following.look_s):
        following.look()


class _Following:
    """The state of a follower: the version that is served, and the last ones that were refused."""

    def __init__(self, settings: ServerSettings, memory: ServerMemory, part: int) -> None:
        assert settings.source is not None
        self._source, self._memory, self._part = location_of(settings.source), memory, part
        work = Path(settings.folder)
        self._local = self._source if isinstance(self._source, Path) else work / FETCHED
        self.look_s = LOOK_S if self._local == self._source else REMOTE_LOOK_S
        self._follower = Follower(self._local, work, settings.missing, memory.wanted())
        self._refusals = ServingMetrics(memory, part).refused.labels()
        self._served: int | None = None
        self._refused, self._again_at, self._last_sentence = 0, 0.0, ""
        """The last version that was refused and not served since, when it is tried again, and why."""
        if memory.lag_s() is None:
            memory.confirm(part)  # the lag counts from the start on

    def begin(self) -> PreparedVersion:
        """Serve the current version, or the newest before it that can be; raises what is wrong with the current one."""
        current = served_version(self._source)
        try:
            return self._serve(current)
        except PersiaError as error:
            self._refuse(current, error)
            before = (number for number in reversed(folders_of(self._source)) if number < current)
            for number in before:
                with suppress(PersiaError):
                    return self._serve(number)
            raise

    def look(self) -> None:
        """Serve the current version if it is another one than before."""
        number = 0
        try:
            number = served_version(self._source)
            if number == self._refused and time.monotonic() < self._again_at:
                return
            if number != self._served:
                self._serve(number)
            self._memory.confirm(self._part)
        except (PersiaError, OSError) as error:
            self._refuse(number, error)

    def _serve(self, number: int) -> PreparedVersion:
        """Prepare a version, and let the workers serve it."""
        if self._local != self._source:
            fetch(self._source, self._local, number)
        found = self._follower.prepare(number)
        self._memory.serve_version(self._part, found.number, number)
        if self._served is not None and (number < self._served or self._last_sentence):
            log.info("version %d is served from now on, step %d", number, found.version.step)
        self._served, self._last_sentence = number, ""
        return found

    def _refuse(self, number: int, error: Exception) -> None:
        """Count and log a version that is not served, once."""
        if number and number != self._refused:
            self._refusals.inc()
        self._refused, self._again_at = number, time.monotonic() + AGAIN_S
        if (sentence := str(error)) != self._last_sentence:
            self._last_sentence = sentence
            what = f"version {number} is refused" if number else "there is no version to follow"
            log.warning("%s: %s; version %s is served on", what, sentence, self._served or "before it")
