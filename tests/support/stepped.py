"""Shards in memory files, in their state after each instruction of the process that works on them."""

import ctypes
import gc
import mmap
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from persia_cli.store.memory_file import new_file
from tests.support.killed import Job, wrapped

TRACE_ME, CONTINUE, STEP = 0, 7, 9
"""Requests of ptrace."""


@contextmanager
def stops_around(names: Sequence[str]) -> Iterator[None]:
    """Stop the calling process before and after each call of methods of recoverable shards."""

    def stopping(_: str, method: Callable[..., object]) -> object:
        def call(*arguments: object) -> object:
            os.kill(os.getpid(), signal.SIGSTOP)
            result = method(*arguments)
            os.kill(os.getpid(), signal.SIGSTOP)
            return result

        return call

    with wrapped(names, stopping):
        yield


class Traced:
    """A child process that stops itself, and is run one instruction at a time between two stops."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long
        self.child = os.fork()
        if self.child == 0:
            code = 1
            try:
                if self._libc.ptrace(TRACE_ME, 0, None, None) != 0:
                    os._exit(99)
                work()
                code = 0
            finally:
                os._exit(code)

    def run(self) -> bool:
        """Wait until the child stops itself; returns False at its end."""
        return self._wait() == signal.SIGSTOP

    def step(self) -> bool:
        """Run one instruction; returns False if the child has stopped itself."""
        self._libc.ptrace(STEP, self.child, None, None)
        return self._wait() == signal.SIGTRAP

    def go(self) -> None:
        """Let the child continue."""
        self._libc.ptrace(CONTINUE, self.child, None, None)

    def end(self) -> None:
        """End the child if it has not ended."""
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)

    def _wait(self) -> int:
        status = os.waitpid(self.child, 0)[1]
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        self.child = 0
        assert os.waitstatus_to_exitcode(status) == 0, "the child failed: see its traceback above"
        return 0


class States:
    """All states of a file that a process goes through, instruction by instruction, each as a separate file."""

    def __init__(self, job: Job, file: int) -> None:
        shard, _ = job.attach(file)
        first = shard.memory._pages.ctypes.data
        # A small request uses only the beginning of the answers; the rows are after them.
        answers = shard.answers.positions.ctypes.data - first
        self._spans = [(0, answers + (1 << 12)), (answers + shard.answers.positions.nbytes, shard.memory._end)]
        self._size = shard.memory._pages.size
        del shard
        gc.collect()
        self._pages = mmap.mmap(file, self._size, mmap.MAP_SHARED)

    def now(self) -> list[bytes]:
        return [self._pages[start:stop] for start, stop in self._spans]

    def copy(self, state: list[bytes]) -> int:
        """Return a new file with a state."""
        file = new_file("state")
        os.ftruncate(file, self._size)
        for (start, _), content in zip(self._spans, state, strict=True):
            os.pwrite(file, content, start)
        return file


def each_state(job: Job, file: int, methods: Sequence[str]) -> Iterator[int]:
    """Yield a copy of the file after each instruction within these methods that changed it, while a child runs."""
    states = States(job, file)

    def work() -> None:
        with stops_around(methods):
            job.go_on(job.attach(file)[0])

    traced = Traced(work)
    last = states.now()
    try:
        while traced.run():
            while traced.step():
                now = states.now()
                if now != last:
                    last = now
                    copy = states.copy(now)
                    try:
                        yield copy
                    finally:
                        os.close(copy)
            traced.go()
    finally:
        traced.end()
