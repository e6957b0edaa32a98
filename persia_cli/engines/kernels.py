"""The part of a driver that handles kernels that are not compiled yet."""

from collections.abc import Callable

from persia_cli.kernels.toolchain.cache import cache_folder, can_cache, is_cached
from persia_cli.kernels.toolchain.needed import (
    COLD,
    SAVING,
    SCORING,
    SERVER,
    WORKER,
    pooling_kernels,
    recoverable_kernels,
    training_kernels,
)
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.plan.job import JobPlan
from persia_cli.plan.replacement import retains_memory


def job_kernels(plan: JobPlan) -> list[str]:
    """Return the names of the kernels that the roles of a job compile before they are ready."""
    train = plan.job.task == "train"
    names = [*SERVER, *WORKER, *SCORING]
    if train:
        kernels = recoverable_kernels if retains_memory(plan.run, plan.job, "embedding-server") else training_kernels
        names += [*kernels(group.optimizer.kind for group in plan.layout.groups), *SAVING]
    names += COLD if plan.run.embedding.cold else ()
    names += pooling_kernels((feature.pooling for feature in plan.layout.features), train)
    return list(dict.fromkeys(names))


class Compiling:
    """Writes the progress of compiling a job's kernels to its events."""

    def __init__(self, plan: JobPlan) -> None:
        self._events = Journal(plan.run_dir / EVENTS)
        self._missing = [name for name in job_kernels(plan) if not is_cached(name)]
        self._total = len(self._missing)
        if not self._missing:
            return
        self._note()
        if not can_cache():
            self._events.write(
                event="warning",
                text=f"compiled kernels cannot be stored in {cache_folder()}, so each process compiles them "
                "at every start; set NUMBA_CACHE_DIR to a folder that can be written",
            )

    def close(self) -> None:
        """Close the events."""
        self._events.close()

    def check(self) -> None:
        """Record the kernels that roles have compiled since the last call; cheap if there are none."""
        for name in [name for name in self._missing if is_cached(name)]:
            self._missing.remove(name)
            self._note(kernel=name)

    def compile(self, follow: Callable[[], None]) -> None:
        """Compile the missing kernels in this process, for roles that run as its threads."""
        from persia_cli.kernels.toolchain.warm import warm

        def after_each() -> None:
            self.check()
            follow()

        warm(list(self._missing), after_each)

    def _note(self, **kernel: str) -> None:
        done = self._total - len(self._missing)
        self._events.write(event="compiling", done=done, total=self._total, **kernel)
