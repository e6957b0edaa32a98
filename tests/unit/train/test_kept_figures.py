"""The figures of steps in a memory file come back as they were, and no others in their place."""

import os

import numpy as np
import pytest

from persia_cli.config.schema import Link
from persia_cli.kernels.memory import HUGE_PAGE
from persia_cli.roles.interval import Interval
from persia_cli.store.memory_file import SERVING, MemoryFile, new_file
from persia_cli.train.inputs import Samples
from persia_cli.train.kept_figures import KeptFigures
from persia_cli.train.step import StepResult
from persia_cli.wire.message import TableTotals
from persia_cli.wire.messages import Rows

STEPS, MOST, TASKS, SERVERS = 4, 6, 2, 3
LINKS: list[Link] = ["logistic", "logistic"]


def step_of(number: int, scale: float | None = None) -> tuple[Samples, StepResult, Rows]:
    rng = np.random.default_rng(number)
    size = number % (MOST + 1)
    labels = rng.integers(0, 2, (size, TASKS)).astype(np.float32)
    weights = rng.random(size, np.float32) if number % 2 else None
    logits = rng.standard_normal((size, TASKS)).astype(np.float32)
    totals = tuple(TableTotals(number + each, each, 2, 3) for each in range(SERVERS))
    samples = Samples(np.empty((size, 5), np.float32), labels, weights, ())
    return samples, StepResult(logits, rng.random(TASKS), [], scale, number), Rows(2, totals, 40 + number, 3, [])


@pytest.fixture
def file():
    number = new_file("figures")
    yield number
    os.close(number)


def figures_in(file: int, keep: bool) -> tuple[MemoryFile, KeptFigures]:
    nbytes = KeptFigures.nbytes(STEPS, MOST, TASKS, SERVERS) + 4 * HUGE_PAGE
    memory = MemoryFile(file, "a test", nbytes, keep)
    return memory, KeptFigures(memory.array, STEPS, MOST, TASKS, SERVERS)


@pytest.mark.parametrize("scale", [None, 512.0])
def test_an_interval_from_the_file_is_that_of_the_steps(file, scale):
    memory, figures = figures_in(file, keep=False)
    for step in range(9):
        figures.put(step, *step_of(step, scale))
    memory.state = SERVING
    memory.close()
    del memory, figures
    _, figures = figures_in(file, keep=True)
    direct, again = Interval(LINKS), Interval(LINKS)
    for step in range(5, 9):
        direct.add(*step_of(step, scale))
    for _, counted in figures.between(5, 9):
        again.add(*counted)
    reports = [interval.report("train", 9, 1.0, more=False) for interval in (direct, again)]
    assert reports[0][0] == reports[1][0]
    for one, other in zip(reports[0][1], reports[1][1], strict=True):
        assert np.array_equal(one, other)


def test_a_step_that_is_not_there_is_not_made_up(file):
    _, figures = figures_in(file, keep=False)
    for step in range(6):
        figures.put(step, *step_of(step))
    assert [step for step, _ in figures.between(2, 6)] == [2, 3, 4, 5]
    for first, stop in ((1, 3), (4, 7)):
        with pytest.raises(LookupError):
            list(figures.between(first, stop))
