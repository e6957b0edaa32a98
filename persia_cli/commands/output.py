"""Settings of the output that every command has: `--log-format` and `--verbose`."""

from dataclasses import dataclass


@dataclass(slots=True)
class OutputSettings:
    """The format of what commands print."""

    as_json: bool = False
    """True: stderr has one JSON object a line."""
    verbose: bool = False
    """True: details are printed that `persia report` has too."""


OUTPUT = OutputSettings()
"""The settings of this process."""
