"""A process of delay lines: `python -m persia_cli.bench.delayed PARENT DELAY_MS TOKEN_FILE FRONT BACK [FRONT …]`."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from persia_cli.errors import RoleError
from persia_cli.launch.python import python_module
from persia_cli.launch.role import die_with
from persia_cli.wire.context import Context
from persia_cli.wire.delay import DelayLine, run_lines
from persia_cli.wire.token import read_token

READY = b"ready\n"


@contextmanager
def delay_process(fronts: Mapping[str, str], delay_ms: float, parent: int, token_file: Path) -> Iterator[None]:
    """Run delay lines from each front address to its back while the context lasts; the process ends with `parent`."""
    words = [str(parent), str(delay_ms), str(token_file), *(address for pair in fronts.items() for address in pair)]
    command = [*python_module("persia_cli.bench.delayed"), *words]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != READY:
            raise RoleError(f"the process that delays messages ended with {process.wait()}")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(words: Sequence[str]) -> None:
    """Forward messages until killed."""
    parent, delay_ms, token_file, *addresses = words
    die_with(int(parent))
    context = Context(read_token(Path(token_file)))
    lines = [
        DelayLine(context, front, back, float(delay_ms) / 1e3)
        for front, back in zip(addresses[0::2], addresses[1::2], strict=True)
    ]
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    run_lines(lines, lambda: False)


if __name__ == "__main__":
    main(sys.argv[1:])
