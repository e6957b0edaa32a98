"""What a command prints where its output is not a terminal."""

import shlex


def key_values(stdout: str) -> dict[str, str]:
    """Return the figures of the last line of a command's results."""
    return dict(word.split("=", 1) for word in shlex.split(stdout.splitlines()[-1]))
