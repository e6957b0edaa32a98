"""The compilation of the dense network by torch."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from persia_cli.errors import ConfigError

if TYPE_CHECKING:
    # `require_compiler` is called without torch, which takes long to import.
    from torch import nn


def compile_network(module: "nn.Module") -> None:
    """Make torch.compile compile `module` at its first call, and again for other kinds of batches.

    Names and values of its weights do not change. Raise ConfigError if there is no C++ compiler.
    """
    require_compiler()
    module.compile()


def require_compiler() -> None:
    """Raise ConfigError if torch.compile would not find a C++ compiler."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"train.compile=true needs a C++ compiler, and {compiler} was not found; install one, name it in the "
            "environment variable CXX, or set train.compile=false"
        )


@contextmanager
def watched_compiling(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call `begin()` and `end()` around all compilations by torch in this process while the context lasts.

    The calls are made in the thread that waits for the compilation.
    """
    # Imported here, since it takes seconds.
    from torch._dynamo.callback import callback_handler

    def on_begin(_: object) -> None:
        begin()

    def on_end(_: object) -> None:
        end()

    callback_handler.register_start_callback(on_begin)
    callback_handler.register_end_callback(on_end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(on_begin)
        callback_handler.remove_end_callback(on_end)
