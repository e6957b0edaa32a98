"""`python -m scripts.bench kernels`: cases, alternating timing, ratios, and results that are right."""

from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from persia_cli.bench.baselines.steps import OneBag
from persia_cli.errors import ConfigError
from persia_cli.store.layout import OptimizerKind
from scripts.bench import journal_cases, kernels, mapped_cases, save_cases
from scripts.bench.alternate import QUICK, Timing, Turn, alternate, compared, single
from scripts.bench.step_cases import EmbeddingStep
from scripts.bench.stores import EPS, LR
from scripts.bench.views import lines


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, 1)


def test_a_ratio_is_how_many_times_faster_we_are() -> None:
    times = {"persia": Timing(2.0, 1.0, 4.0, 1), "baseline": timing(5.0), "other": timing(1.0)}
    result = compared("what", times, 10.0, "rows/s")
    ours, theirs, _ = result.sides
    assert (ours.median, ours.least, ours.most, theirs.median) == (5.0, 2.5, 10.0, 2.0)
    assert ours.ratios == {"baseline": 2.5, "other": 0.5}
    assert theirs.ratios == {}


def test_cases_are_chosen_by_part_of_their_name() -> None:
    assert kernels.chosen(None) == list(kernels.CASES)
    assert kernels.chosen("ook-u") == ["look-up"]
    with pytest.raises(ConfigError, match=r"no benchmark has 'nothing' in its name; there are look-up, .*start"):
        kernels.chosen("nothing")


def test_the_step_that_is_timed_trains_as_torch_does() -> None:
    rng, cardinalities = np.random.default_rng(0), (3, 40)
    import torch

    ours = EmbeddingStep(cardinalities, 5, "adagrad", samples=20, rows=43)
    theirs = OneBag(cardinalities, 5, "adagrad", 20, LR, EPS)
    theirs.weights[...] = np.concatenate([ours.begin(f, np.arange(n)) for f, n in enumerate(cardinalities)])
    for _ in range(3):
        ids = np.stack([rng.integers(0, values, 20) for values in cardinalities])
        gradient = rng.standard_normal((20, 2, 5), np.float32)
        mine = ours.step(ours.ready(ids), gradient)
        other = theirs.step(theirs.ready(ids), torch.from_numpy(gradient)).detach().numpy()
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_a_result_is_a_line_for_each_side() -> None:
    speed = single("look-up", "Mrows/s", {"persia": 20.0, "torch": 10.0, "limit": 40.0}, "a note")
    assert list(lines(speed)) == [
        "look-up: 20 Mrows/s; 2.00 x torch (10); a note",
        "look-up: 20 Mrows/s; 0.50 x limit (40); a note",
    ]


class FakeClock:
    """A clock that stands still but for what calls take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, *seconds: float):
        """Return a function that takes some seconds when called, the last of them from then on."""
        left = list(seconds)

        def run() -> None:
            self.called.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_the_order_is_reversed_each_round_and_preparing_is_not_timed() -> None:
    clock = FakeClock()
    turns = {
        "a": Turn(clock.call("a", 5.0, 1.0, 3.0), loops=1),
        "b": Turn(clock.call("b", 1.0), prepare=clock.call("prepare", 100.0), loops=2),
    }
    timed = alternate(turns, rounds=3, clock=clock)
    assert " ".join(clock.called) == "a prepare b b " + "prepare b b a " + "a prepare b b"
    assert timed == {"a": Timing(3.0, 1.0, 5.0, loops=1), "b": Timing(1.0, 1.0, 1.0, loops=2)}


def test_as_many_calls_as_fill_the_time_judged_by_the_second() -> None:
    clock = FakeClock()
    timed = alternate({"fast": clock.call("fast", 3.0, 0.01)}, rounds=2, at_least=0.05, clock=clock)
    assert timed["fast"].loops == 5
    assert timed["fast"].median == pytest.approx(0.01)
    assert len(clock.called) == 2 + 2 * 5


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, also for temporary files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_every_optimizer_is_measured_with_and_without_a_journal() -> None:
    results = list(journal_cases.journal(QUICK))
    places = product(get_args(OptimizerKind), ("in the cache", "from memory"))
    assert [each.name for each in results] == [f"journal, {kind}, dim 16, {place}" for kind, place in places]
    assert all(0.1 < each.sides[0].ratios[journal_cases.BARE] < 3 for each in results)


def test_mapped_rows_are_measured_and_leave_nothing(folder: Path) -> None:
    results = list(mapped_cases.mapped(QUICK))
    assert [result.name.rpartition(" ")[2] for result in results] == ["uniform", "Zipf"]
    assert all("training store" in result.sides[0].ratios for result in results)
    assert not list(folder.iterdir())


def test_saves_are_measured_and_leave_nothing(folder: Path) -> None:
    assert len(list(save_cases.save(QUICK))) >= 2
    assert not list(folder.iterdir())
