"""The Python API: jobs as child processes, and runs as objects; `import persia_cli as persia` has its names."""

from persia_cli.api.functions import open, recommend, sweep, train
from persia_cli.api.run import RunFolder as Run
from persia_cli.errors import PersiaError

__all__ = ["PersiaError", "Run", "open", "recommend", "sweep", "train"]
