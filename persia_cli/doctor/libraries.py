"""Versions of libraries, and the devices that torch sees."""

import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from persia_cli.config.replicas import GPU
from persia_cli.doctor.finding import Finding, gib
from persia_cli.engines.processes import python_module
from persia_cli.version import __version__

TORCH_S = 120.0


def versions() -> Finding:
    """Compare the versions of libraries, of extras too, with the ranges that this version is tested with."""
    required = [Requirement(text) for text in requires("persia-cli") or ()]
    required = [library for library in required if library.name != "persia-cli"]  # by which the extra `all` has others
    installed = {library.name: _version(library.name) for library in required}
    missing = [library.name for library in required if library.marker is None and installed[library.name] is None]
    untested = {
        library.name: f"'{library.name}{library.specifier}'"
        for library in required
        if not _fits(library, installed[library.name])
    }
    present = sum(version is not None for version in installed.values())
    text = f"persia {__version__}, Python {platform.python_version()}, {present} of {len(installed)} libraries"
    advice = f"pip install {' '.join(untested.values())}: {', '.join(untested)} is missing or untested"
    values = {"python": platform.python_version(), "libraries": installed, "untested": list(untested)}
    return Finding(text, values, advice if untested else "", prevents=bool(missing))


def _fits(required: Requirement, installed: str | None) -> bool:
    is_optional = required.marker is not None
    return is_optional if installed is None else required.specifier.contains(installed, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def torch() -> Finding:
    """Ask torch, in another process, for its version and its GPUs."""
    try:
        module = python_module("persia_cli.rehearsal.devices")
        ended = subprocess.run(module, capture_output=True, text=True, timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        return Finding("no answer", {}, f"install torch again: it does not start within {TORCH_S:g} s", prevents=True)
    reason = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
    if ended.returncode:
        return Finding("cannot be used", {}, f"install torch again: {reason}", prevents=True)
    found = json.loads(ended.stdout)
    gpus = [f"{each['name']}, {gib(each['memory'])}" for each in found["gpus"]]
    why = f"its CUDA {found['cuda']} does not start: {reason}" if found["cuda"] else "install torch with CUDA"
    advice = f"there is a GPU, and torch does not see it: {why}" if GPU.exists() and not gpus else ""
    return Finding(f"{found['torch']}, {'; '.join(gpus) or 'no GPU'}", found, advice)
