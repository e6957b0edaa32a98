"""Choice of cases of `python -m scripts.bench kernels`, ratios, and results that are right before they are fast."""

from collections.abc import Iterator

import numpy as np
import pytest

from persia_cli.bench.baselines.steps import OneBag
from persia_cli.bench.result import Result
from persia_cli.errors import ConfigError
from scripts.bench import kernels
from scripts.bench.alternate import QUICK, Scale, Timing, compared, single
from scripts.bench.step_cases import EmbeddingStep, fitting
from scripts.bench.stores import EPS, LR


def timing(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, 1)


def test_a_ratio_is_how_many_times_faster_we_are() -> None:
    times = {"persia": Timing(2.0, 1.0, 4.0, 1), "baseline": timing(5.0), "other": timing(1.0)}
    result = compared("what", times, 10.0, "rows/s")
    ours, theirs, _ = result.sides
    assert (ours.median, ours.least, ours.most, theirs.median) == (5.0, 2.5, 10.0, 2.0)
    assert ours.ratios == {"baseline": 2.5, "other": 0.5}
    assert theirs.ratios == {}


def test_a_number_that_should_be_small_has_a_ratio_too() -> None:
    assert single("memory", "bytes", {"persia": 180.0, "its values": 160.0}).sides[0].ratios == {"its values": 1.125}


def test_cases_are_chosen_by_part_of_their_name() -> None:
    assert kernels.chosen(None) == list(kernels.CASES)
    assert kernels.chosen("ook-u") == ["look-up"]
    with pytest.raises(ConfigError, match=r"no benchmark has 'nothing' in its name; there are look-up, .*start"):
        kernels.chosen("nothing")


def test_results_know_their_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(_: Scale) -> Iterator[Result]:
        yield compared("what", {"persia": timing(2.0), "baseline": timing(1.0)}, 1.0, "rows/s")

    monkeypatch.setitem(kernels.CASES, "dedup", case)
    begun: list[str] = []
    [result] = kernels.run(["dedup"], QUICK, begun.append)
    assert (result.case, result.rounds, begun) == ("dedup", QUICK.rounds, ["dedup"])
    assert result.sides[0].ratios == {"baseline": 0.5}


def test_cardinalities_shrink_to_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting((10, 20), 16) == ((10, 20), "")
    monkeypatch.setattr("scripts.bench.step_cases.available_bytes", lambda: 2**20)
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
