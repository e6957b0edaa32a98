"""Runs that are trained once for all system tests, which only read them."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from tests.support.jobs import train
from tests.support.lists import STEPS, lists_job
from tests.support.shared import shared
from tests.support.small import WORDS


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., JobResult]:
    """Train jobs by their arguments, each only once a session."""

    def result(*words: str) -> JobResult:
        name = hashlib.sha256(repr(words).encode()).hexdigest()[:16]
        return result_of(shared(tmp_path_factory, name, lambda folder: train([*words], folder / "run")) / "run")

    return result


@pytest.fixture(scope="session")
def undisturbed(trained: Callable[..., JobResult]) -> JobResult:
    """The small job with nothing between its roles: one replica of each, in one process."""
    return trained(*WORDS, "cluster=embedded")


@pytest.fixture(scope="session")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of `lists_job`, and in `run` its training, saved from two servers halfway and at its end.

    The run has two labels, sample weights, lists, sequences, shared tables and three kinds of rows.
    """

    def make(folder: Path) -> None:
        saves = [f"train.steps={STEPS}", f"checkpoint.every_steps={STEPS // 2}", "cluster.embedding_servers=2"]
        train([*lists_job(folder), *saves], folder / "run")

    return shared(tmp_path_factory, "lists", make)


@pytest.fixture
def lists_run(lists: Path, tmp_path: Path) -> Path:
    """A copy of the run of `lists`, to which commands may add evaluations, predictions and faults."""
    return Path(shutil.copytree(lists / "run", tmp_path / "run"))
