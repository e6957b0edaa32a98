"""What `persia bench kernels` measures: choice of cases, targets, and results that are right before they are fast."""

from collections.abc import Iterator

import numpy as np
import pytest

from persia_cli.bench import kernels
from persia_cli.bench.alternate import Timing
from persia_cli.bench.baselines.one_bag import OneBag
from persia_cli.bench.layouts import EPS, LR
from persia_cli.bench.result import FULL, QUICK, Result, Scale, faster, judge, within
from persia_cli.bench.step import EmbeddingStep
from persia_cli.bench.step_cases import fitting
from persia_cli.errors import ConfigError


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, 1)


def test_a_ratio_says_how_many_times_faster_we_are() -> None:
    result = faster("what", "baseline", timing(2.0), timing(5.0), 10.0, "rows/s", target=2.5)
    assert (result.ours, result.theirs, result.ratio) == (5.0, 2.0, 2.5)
    assert judge(result) is True
    assert judge(faster("what", "baseline", timing(2.0), timing(4.9), 10.0, "rows/s", target=2.5)) is False
    assert judge(faster("what", "baseline", timing(2.0), timing(5.0), 10.0, "rows/s")) is None


def test_a_limit_must_not_be_exceeded() -> None:
    assert judge(within("memory", "limit", 160.0, 160.0, "bytes")) is True
    assert judge(within("memory", "limit", 160.1, 160.0, "bytes")) is False


def test_cases_are_chosen_by_part_of_their_name() -> None:
    assert kernels.chosen(None) == list(kernels.CASES)
    assert kernels.chosen("ook-u") == ["look-up"]
    with pytest.raises(ConfigError, match=r"no benchmark has 'nothing' in its name; there are look-up, .*start"):
        kernels.chosen("nothing")


@pytest.mark.parametrize(("scale", "passed"), [(FULL, False), (QUICK, None)])
def test_quick_runs_are_not_judged(monkeypatch: pytest.MonkeyPatch, scale: Scale, passed: bool | None) -> None:
    def case(_: Scale) -> Iterator[Result]:
        yield faster("what", "baseline", timing(2.0), timing(1.0), 1.0, "rows/s", target=1.0)

    monkeypatch.setitem(kernels.CASES, "dedup", case)
    begun: list[str] = []
    [result] = kernels.run(["dedup"], scale, begun.append)
    assert (result.case, result.passed, begun) == ("dedup", passed, ["dedup"])


def test_cardinalities_shrink_to_what_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting((10, 20), 16) == ((10, 20), "")
    monkeypatch.setattr("persia_cli.bench.step_cases.available_bytes", lambda: 2**20)
    smaller, note = fitting((100, 10**9), 16)
    assert sum(smaller) < 10_000
    assert smaller[0] == 3
    assert note.startswith("cardinalities scaled by")


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
