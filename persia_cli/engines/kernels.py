"""The part of a driver that handles kernels that are not compiled yet."""

from collections.abc import Callable, Iterable

from persia_cli.kernels.toolchain.cache import cache_folder, can_cache, is_cached, is_ready
from persia_cli.kernels.toolchain.needs import COLD_ROWS, SAVING, SCORING, SERVER, WORKER, pooling_needs, training_needs
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.plan.job import JobPlan, retains_memory


def job_needs(plan: JobPlan) -> list[str]:
    """Return what the roles of a job compile kernels for before they are ready."""
    needs = [SERVER, WORKER, SCORING, *pooling_needs(feature.pooling for feature in plan.layout.features)]
    if plan.job.task == "train":
        is_recoverable = retains_memory(plan.run, "embedding-server")
        needs += [*training_needs((group.optimizer.kind for group in plan.layout.groups), is_recoverable), SAVING]
    return [*needs, COLD_ROWS] if plan.run.embedding.cold else needs


def job_kernels(needs: Iterable[str]) -> list[str]:
    """Return the names of the kernels of these needs."""
    from persia_cli.kernels.toolchain.warm import kernels_for  # needs numba

    return [kernel.name for kernel in kernels_for(needs)]


class Compiling:
    """Writes the progress of compiling a job's kernels to its events."""

    def __init__(self, plan: JobPlan) -> None:
        self._events = Journal(plan.run_dir / EVENTS)
        self._needs = job_needs(plan)
        names = [] if all(map(is_ready, self._needs)) else job_kernels(self._needs)
        self._missing = [name for name in names if not is_cached(name)]
        self._total = len(self._missing)
        if not self._missing:
            return
        self._record()
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
            self._record(kernel=name)

    def compile(self, follow: Callable[[], None]) -> None:
        """Compile or load the kernels in this process, for roles that run as its threads."""
        from persia_cli.kernels.toolchain.warm import warm

        def after_kernel() -> None:
            self.check()
            follow()

        warm(self._needs, after_kernel)

    def _record(self, **kernel: str) -> None:
        done = self._total - len(self._missing)
        self._events.write(event="compiling", done=done, total=self._total, **kernel)
