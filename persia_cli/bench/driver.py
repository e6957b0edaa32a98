"""The driver of a job that trains in turns: what measures several things in turns decides when ours goes on."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from persia_cli.errors import RoleError
from persia_cli.plan.job import DRIVER
from persia_cli.roles.link import Link
from persia_cli.wire.context import Context
from persia_cli.wire.loop import Loop


class Driver:
    """Joins the job in a thread of its own; all methods are for the thread that measures."""

    def __init__(self, context: Context, coordinator: str) -> None:
        self._loop = Loop(context, f"{DRIVER}-0")
        self._link = Link(self._loop, coordinator, DRIVER, 0)
        self._waker = self._loop.waker()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._paused: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"{DRIVER}-0")
        self._thread.start()

    def wait_paused(self, seconds: float) -> int | None:
        """Wait until the job stands before a turn; returns the number to go on with, None if it has not come yet.

        Raises RoleError if the driver has lost the job.
        """
        if self._error is not None:
            raise RoleError(f"the job cannot be driven any more: {self._error}")
        try:
            return self._paused.get(timeout=seconds)
        except queue.Empty:
            return None

    def go_on(self, number: int) -> None:
        """Begin the turn that `wait_paused` returned."""
        self._calls.put(lambda: self._link.done(number))
        self._waker.wake()

    def close(self) -> None:
        """Leave the job, whatever it does."""
        self._closing = self._link.stop = True
        self._waker.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._link.join("")
            self._link.ready(self._on_instruction)
            while not self._link.stop:
                self._loop.poll(0.2)
                while not self._calls.empty():
                    self._calls.get()()
            self._link.farewell()
        except Exception as error:
            if not self._closing:
                self._error = error
        finally:
            self._loop.close()

    def _on_instruction(self, number: int, kind: str, body: dict[str, Any]) -> None:
        if kind == "paused":
            self._paused.put(number)
