"""A process that loads a server, so that the server's work and the load's are not those of one process.

It reads a `LoadOrder` from its standard input and writes a `LoadReport` to its standard output.
"""

import gc
import subprocess
import sys

import msgspec

from persia_cli.bench.load.generator import LoadGenerator
from persia_cli.bench.load.order import LoadOrder, LoadReport
from persia_cli.engines.processes import die_with, python_module
from persia_cli.errors import PersiaError, RoleError

GRACE_S = 60.0
"""Seconds, beyond those of the load and of its patience, after which a load process is aborted."""
_ORDER = msgspec.msgpack.Decoder(LoadOrder)
_REPORT = msgspec.msgpack.Decoder(LoadReport)


def load(order: LoadOrder) -> LoadReport:
    """Load a server from another process; raises RoleError if it cannot be, or answers wrongly."""
    seconds = order.warm_up_s + order.seconds + order.patience_s + GRACE_S
    try:
        done = subprocess.run(
            python_module("persia_cli.bench.load.process"), input=msgspec.msgpack.encode(order),
            stdout=subprocess.PIPE, timeout=seconds, check=False,
            start_new_session=True,  # Ctrl-C of a terminal is for the benchmark, which ends this process
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RoleError(f"the process that loads the server has not ended within {seconds:g} s") from None
    if done.returncode:
        raise RoleError(f"the process that loads the server ended with exit code {done.returncode}; see above")
    report = _REPORT.decode(done.stdout)
    if report.failure is not None:
        raise RoleError(report.failure)
    return report


def main() -> None:
    """Load the server that standard input names."""
    order = _ORDER.decode(sys.stdin.buffer.read())
    die_with(order.parent)
    gc.freeze()
    try:
        report = LoadGenerator(order).run()
    except PersiaError as error:
        report = LoadReport(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(report))


if __name__ == "__main__":
    main()
