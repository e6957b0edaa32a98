"""The dense network, compiled by torch."""

import os
import shutil

from torch import nn

from persia_cli.errors import ConfigError


def compile_network(module: nn.Module) -> None:
    """Let `module` be compiled by torch.compile as it is first called, and again for other kinds of batches.

    Names and values of its weights stay. Raises ConfigError where there is no C++ compiler.
    """
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"train.compile=true needs a C++ compiler, and there is no {compiler} here; install one, name it in the "
            "environment variable CXX, or set train.compile=false"
        )
    module.compile()
