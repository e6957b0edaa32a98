"""Metrics, ratios and the sentence on the bottleneck follow from the measurements."""

from functools import partial

import pytest

from persia_cli.bench.baselines import DenseBaseline
from persia_cli.bench.breakdown import bottleneck, bytes_per_sample
from persia_cli.bench.compare import compare
from persia_cli.bench.result import Side, Stage, with_ratios
from persia_cli.bench.rounds import MeasuredTurn, side_of, take_turns, timed_turn, without_ends
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import UserError
from tests.support.small import WORDS


def test_rounds_are_reversed_in_turn_and_the_first_is_discarded() -> None:
    called: list[str] = []

    def taker(name: str) -> MeasuredTurn:
        called.append(name)
        return MeasuredTurn(len(called), 1.0, {})

    notes: list[str] = []
    takers = {name: partial(taker, name) for name in "ab"}
    taken = take_turns(takers, 2, notes.append)
    assert "".join(called) == "ab" + "ba" + "ab"
    assert {name: [turn.samples for turn in turns] for name, turns in taken.items()} == {"a": [4, 5], "b": [3, 6]}
    assert notes[:3] == ["warming up: a", "warming up: b", "round 1 of 2: b"]
    assert len(take_turns(takers, 3, notes.append, warm_up=False)["a"]) == 3
    assert "round 1 of 3: a" in notes


def test_a_turn_of_a_trainer_does_not_count_its_warm_up() -> None:
    steps, clock = iter(range(10)), iter([{"trainer": 5.0}, {"trainer": 7.0}])
    figures = timed_turn(lambda: next(steps), 10, lambda: next(clock))
    assert figures.samples == sum(range(2, 10))
    assert figures.cpu_s == {"trainer": 2.0}


def test_results_of_a_side_are_medians_of_its_turns() -> None:
    turns = [
        MeasuredTurn(100, seconds, {"trainer": cpu}, staleness, auc, busy, gpu)
        for seconds, cpu, staleness, auc, busy, gpu in (
            (1.0, 0.1, 2.0, 0.8, 0.0, 0.5),
            (2.0, 0.3, 3.0, 0.7, 1.5, None),
            (4.0, 0.2, 7.0, 0.75, 0.5, 0.7),
        )
    ]
    side = side_of("torch", turns, batch_size=10, per_sample=2)
    assert (side.median, side.least, side.most) == (100.0, 50.0, 200.0)
    assert side.cpu_ms == {"trainer": pytest.approx(20.0)}
    assert (side.busy_cores, side.gpu_busy, side.staleness) == (1.5, pytest.approx(0.6), 3.0)
    assert (side.auc, side.auc_spread) == (pytest.approx(0.75), pytest.approx(0.1))
    ours = Side("persia", 150.0, 150.0, 150.0)
    assert [each.ratios for each in with_ratios([ours, side])] == [{"torch": 1.5}, {}]


def side(cpu_ms: dict[str, float], step_ms: float, busy: float = 0.0) -> Side:
    rate = 32 / step_ms * 1e3
    return Side("persia", rate, rate, rate, cpu_ms=cpu_ms, busy_cores=busy)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    return compose_run(WORDS)


def test_bytes_on_the_wire_are_those_of_unique_rows() -> None:
    # One table of one row: whatever the batch, one key and one row of 4 columns travel for 32 samples.
    run = compose_run([*WORDS, "dataset.generator.cardinalities=[1]"])
    hops = {hop.hop: hop.bytes_per_sample * 32 for hop in bytes_per_sample(run)}
    assert list(hops.values()) == [32 * 8 + 33 * 4, 32 * 12, 10, 16, 16 + 32 * 4, 16, 26]


def test_what_cannot_be_compared_is_refused_before_anything_starts() -> None:
    for override, text in (("cluster=embedded", "use cluster=local"), ("cluster.nn_workers=2", "nn_workers=1")):
        with pytest.raises(UserError, match=text):
            next(compare(compose_run([*WORDS, override]), [DenseBaseline], ["ring"], 4, 1, lambda text: None))


@pytest.mark.parametrize(
    ("cpu_ms", "busy", "begin"),
    [
        ({"nn-worker-0": 98.0, "embedding-server-0": 5.0}, 0.0, "The NN worker's arithmetic is the bottleneck"),
        ({"nn-worker-0": 30.0, "embedding-server-0": 99.0}, 0.0, "embedding-server-0 is the bottleneck"),
        ({"nn-worker-0": 98.0, "embedding-server-0": 90.0}, 2.0, "The 4 cores are the bottleneck"),
        ({"nn-worker-0": 20.0, "embedding-server-0": 10.0}, 0.0, "Waiting is the bottleneck"),
    ],
)
def test_the_bottleneck_is_named(
    cpu_ms: dict[str, float], busy: float, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 32 samples takes 100 ms."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    ours = Side("persia", 320.0, 320.0, 320.0, cpu_ms=cpu_ms | {"coordinator-0": 1.0}, busy_cores=busy)
    stages = [Stage("nn-worker-0", "wait for batch", 1.25, False)]
    assert bottleneck(compose_run(WORDS), ours, None, stages).startswith(begin)


def test_a_measured_job_saves_nothing_and_claims_no_place() -> None:
    words = ["conf=synthetic", "checkpoint.path=/saved", "checkpoint.every_steps=5"]
    run = compose_run(words)
    checkpoint = without_ends(run, inspect(run.dataset), 10, 5).checkpoint
    assert (checkpoint.at_end, checkpoint.every_steps, checkpoint.path) == (False, None, None)
