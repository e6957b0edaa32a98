"""The steps of a training that its roles record for a trace."""

from persia_cli.errors import ConfigError


def traced_steps(wanted: tuple[int, int] | None, steps: int) -> tuple[int, int]:
    """Return the requested steps [first, last) within a training of so many; raise ConfigError if it has none."""
    if wanted is None or not steps:
        return 0, 0
    first, last = wanted
    if first >= steps:
        raise ConfigError(f"train.trace_steps=[{first},{last}]: the training has the steps 0 to {steps - 1} only")
    return first, min(last, steps)
