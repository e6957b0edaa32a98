"""The costs of this machine without measured jobs: those of a reference machine, scaled by three short measurements.

Each term of a role's CPU time has a cause: arithmetic, memory, or the interpreter and the system's calls. A probe
measures the CPU time of each cause here; the ratio to that of the reference machine scales its terms.
"""

import socket
import time
from collections.abc import Callable

import msgspec
import numpy as np

from persia_cli.bench.machine import this_machine
from persia_cli.cost.measurements import CostBasis
from persia_cli.cost.model import LOADER, NN, SERVER, WORKER

PROBE_S = 0.5
"""CPU seconds of each probe."""
ERROR = 2.0
"""Greatest ratio of a predicted to a measured speed, or the inverse; see `docs/guide/how-large.md`."""
BATCH = 4096
"""Largest batch that was measured on the reference machine."""

REFERENCE: dict[str, dict[str, float]] = {
    LOADER: {"batches": 8.49e-4, "samples": 1.27e-6},
    WORKER: {"batches": 1.05e-3, "requests": 5.06e-4, "ids": 1.31e-8, "rows": 0.0, "row_bytes": 5.3e-11},
    SERVER: {"requests": 1.21e-3, "rows": 1.46e-7, "row_bytes": 0.0, "converted": 8.09e-9},
    NN: {"batches": 2.24e-3, "samples": 0.0, "id_bytes": 1.08e-9, "multiply_adds": 7.56e-11, "converted": 5.82e-9},
}
"""Costs of the reference machine, a shared EPYC: those of `docs/measured/costs.json`."""

_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()


def _multiply() -> Callable[[], object]:
    """Return products of float32 matrices, so small that numpy computes each in one thread."""
    left, right = np.ones((256, 64, 64), np.float32), np.ones((64, 64), np.float32)
    return lambda: left @ right


def _gather() -> Callable[[], object]:
    """Return a look-up of rows of 16 columns, at random in 64 MiB, which is more than a processor's cache."""
    rows, numbers = np.ones((2**20, 16), np.float32), np.random.default_rng(0).integers(0, 2**20, 2**14)
    return lambda: rows[numbers]


def _exchange() -> Callable[[], object]:
    """Return the exchange of a message of a few KiB over a Unix socket, encoded and decoded."""
    message = {"step": 1, "keys": list(range(500))}

    def exchange() -> None:
        left, right = socket.socketpair()
        with left, right:
            left.send(_ENCODER.encode(message))
            _DECODER.decode(right.recv(2**16))

    return exchange


PROBES = {"arithmetic": _multiply, "memory": _gather, "messages": _exchange}
REFERENCE_S = {"arithmetic": 1.17e-3, "memory": 2.5e-4, "messages": 1.3e-5}
"""CPU seconds of each probe on the reference machine.

They follow from those of a Xeon at 2.8 GHz (1.17e-3, 3.55e-4, 1.79e-5) and the costs of three jobs on both machines.
"""
CAUSES = {"multiply_adds": "arithmetic", "batches": "messages", "requests": "messages"}
"""The probe that scales a term; memory scales all others."""


def measure_probes() -> dict[str, float]:
    """Return the CPU seconds of each probe on this machine, the lowest of many calls."""
    seconds = {}
    for name, prepare in PROBES.items():
        call, begin, lowest = prepare(), time.process_time(), float("inf")
        while (now := time.process_time()) < begin + PROBE_S:
            call()
            lowest = min(lowest, time.process_time() - now)
        seconds[name] = lowest
    return seconds


def scaled(probes: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the costs of roles on a machine whose probes take these CPU seconds."""
    ratios = {name: seconds / REFERENCE_S[name] for name, seconds in probes.items()}
    return {
        role: {term: cost * ratios[CAUSES.get(term, "memory")] for term, cost in terms.items()}
        for role, terms in REFERENCE.items()
    }


def estimated_costs() -> CostBasis:
    """Return an estimate of the costs of this machine; it takes about two seconds."""
    source = "costs of another machine, scaled by a short measurement of this one"
    return CostBasis(source, this_machine(), scaled(measure_probes()), BATCH, ERROR)
