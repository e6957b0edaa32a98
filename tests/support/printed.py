"""The output of a command without a terminal."""

import shlex


def key_values(stdout: str) -> dict[str, str]:
    """Return the metrics of the last line of a command's results."""
    return dict(word.split("=", 1) for word in shlex.split(stdout.splitlines()[-1]))
