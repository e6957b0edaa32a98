"""Optional packages that a run asks for."""

from importlib.util import find_spec

from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError


def check_extras(run: Run) -> None:
    """Raise ConfigError if the run needs a package that is not installed."""
    if run.train.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError(
            "train.tensorboard=true needs TensorBoard, which is not installed: pip install 'persia[tensorboard]'"
        )
