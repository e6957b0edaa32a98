"""Persia: hybrid training of huge recommender models on ordinary machines."""

from typing import TYPE_CHECKING, Any

from persia_cli.version import __version__ as __version__

if TYPE_CHECKING:
    from persia_cli.api import PersiaError, Run, open, recommend, sweep, train

__all__ = ["PersiaError", "Run", "open", "recommend", "sweep", "train"]


def __getattr__(name: str) -> Any:
    """Return a name of the Python API, which the command line does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("persia_cli.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
