"""The load of a GPU, sampled several times a second by the driver's `nvidia-smi`."""

import subprocess
import threading
from statistics import fmean
from time import perf_counter
from typing import Self

COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
EVERY_MS = 100


class GpuUsage:
    """A process that watches one GPU; a context manager that ends it. Without `nvidia-smi` the load is unknown."""

    def __init__(self, gpu: str, command: tuple[str, ...] = COMMAND) -> None:
        """Watch the GPU with the UUID `gpu`; `command` prints its load in percent, line by line."""
        self._command = (*command, f"--id={gpu}", f"--loop-ms={EVERY_MS}")
        self._seen: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return self
        self._thread = threading.Thread(target=self._read, name="gpu-usage")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._thread.join()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def since(self, begin: float) -> float | None:
        """Return the mean fraction of the time since `begin` (perf_counter) in which a kernel ran; None if unknown."""
        shares = [share for at, share in list(self._seen) if at >= begin]
        return fmean(shares) if shares else None

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A GPU that does not report its load is `[N/A]`.
            if line.strip().isdigit():
                self._seen.append((perf_counter(), int(line) / 100.0))
