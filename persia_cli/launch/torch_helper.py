"""Checks of networks that need torch, in another process, since torch takes seconds to import."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from persia_cli.config.schema import CustomModel, Run
from persia_cli.errors import ConfigError
from persia_cli.launch.python import python_module

_TAIL_LINES = 3


def ask_torch(module: str, runs: Sequence[Run]) -> Any:
    """Run a module on runs and return its JSON output; raises ConfigError if it fails or takes too long."""
    limit_s = runs[0].cluster.start_timeout_s
    asked = json.dumps([run.model_dump(mode="json") for run in runs])
    what = f"model.file={runs[0].model.file}" if isinstance(runs[0].model, CustomModel) else "the dense network"
    try:
        ended = subprocess.run(python_module(module), input=asked, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{what}: building it and trying it on two samples took longer than cluster.start_timeout_s={limit_s:g}"
        ) from None
    if ended.returncode:
        lines = "\n".join(f"  {line}" for line in ended.stderr.splitlines()[-_TAIL_LINES:])
        raise ConfigError(f"{what}: building it ended the process with exit code {ended.returncode}\n{lines}".rstrip())
    return json.loads(ended.stdout)
