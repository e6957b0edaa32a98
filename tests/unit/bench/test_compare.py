"""Metrics, ratios and the sentence on the bottleneck follow from the measurements."""

from functools import partial

import pytest

from persia_cli.bench.breakdown import bottleneck, bytes_per_sample, stages_of
from persia_cli.bench.compare import compare
from persia_cli.bench.modes import offered_modes
from persia_cli.bench.result import Side, Stage, with_ratios
from persia_cli.bench.rounds import (
    INTERVALS,
    TurnFigures,
    samples_and_seconds,
    side_of,
    take_turns,
    timed_turn,
    turn_steps,
)
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.observe.recordings import ReplicaTrace
from persia_cli.observe.trace import Span
from tests.support.small import WORDS


def test_a_turn_measures_as_many_steps_as_asked_after_a_warm_up() -> None:
    assert [turn_steps(steps) for steps in (1, 4, 48)] == [5, 5, 60]
    assert all(turn_steps(steps) % INTERVALS == 0 for steps in range(1, 50))
    assert all(turn_steps(steps) * (INTERVALS - 1) / INTERVALS >= steps for steps in range(1, 50))


def test_rounds_are_reversed_in_turn_and_the_first_is_discarded() -> None:
    called: list[str] = []

    def taker(name: str) -> TurnFigures:
        called.append(name)
        return TurnFigures(len(called), 1.0, {})

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
        TurnFigures(100, seconds, {"trainer": cpu}, staleness, auc, busy, gpu)
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


def test_seconds_of_intervals_follow_from_the_rates_that_were_written() -> None:
    lines = [{"samples": 10, "samples_per_s": 1.0}, {"samples": 30, "samples_per_s": 10.0},
             {"samples": 40, "samples_per_s": 2.0}]  # fmt: skip
    assert samples_and_seconds(lines) == (30, 7.0)


def side(cpu_ms: dict[str, float], step_ms: float, busy: float = 0.0) -> Side:
    rate = 32 / step_ms * 1e3
    return Side("persia", rate, rate, rate, cpu_ms=cpu_ms, busy_cores=busy)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    return compose_run(WORDS)


def test_the_nn_worker_that_never_rests_is_the_bottleneck(run: Run) -> None:
    ours = side({"nn-worker-0": 98.0, "embedding-worker-0": 5.0, "data-loader-0": 7.0, "coordinator-0": 1.0}, 100.0)
    dense = Side("dense", 336.0, 336.0, 336.0)
    stages = [Stage("nn-worker-0", "wait for batch", 1.25, False), Stage("nn-worker-0", "forward", 40.0, False)]
    text = bottleneck(run, ours, dense, stages)
    assert text.startswith("The NN worker's arithmetic is the bottleneck: it computes for 98.0 ms")
    assert "on 1 thread, waits 1.25 ms for embeddings; the dense network alone takes 95.2 ms" in text
    assert "data-loader-0, needs 7.0 ms" in text


def test_a_busy_role_is_the_bottleneck(run: Run) -> None:
    ours = side({"nn-worker-0": 30.0, "embedding-server-0": 99.0, "coordinator-0": 1.0}, 100.0)
    assert bottleneck(run, ours, None).startswith("embedding-server-0 is the bottleneck: it is busy for 99.0 ms")


def test_cores_all_in_use_are_the_bottleneck(run: Run) -> None:
    ours = side({"nn-worker-0": 98.0, "embedding-server-0": 90.0, "coordinator-0": 1.0}, 100.0, busy=2.0)
    assert bottleneck(run, ours, None).startswith("The 4 cores are the bottleneck: a step of 100.0 ms needs 189.0 ms")


def test_no_busy_process_means_waiting(run: Run) -> None:
    ours = side({"nn-worker-0": 20.0, "embedding-server-0": 10.0, "coordinator-0": 1.0}, 100.0)
    assert bottleneck(run, ours, None).startswith("Waiting is the bottleneck: of a step of 100.0 ms")


def test_stages_are_milliseconds_per_step_in_the_order_of_a_step() -> None:
    spans = [
        Span("training", "backward", 4, 0, 9_000_000, 12_000_000),
        Span("training", "forward", 4, 0, 5_000_000, 9_000_000),
        Span("", "pull", 4, 0, 1_000_000, 5_000_000),
        Span("training", "forward", 5, 0, 12_000_000, 14_000_000),
        Span("", "pull", 6, 0, 1_000_000, None),
    ]
    assert stages_of([ReplicaTrace("nn-worker-0", spans)], 2) == [
        Stage("nn-worker-0", "forward", 3.0, False),
        Stage("nn-worker-0", "backward", 1.5, False),
        Stage("nn-worker-0", "pull", 2.0, True),
    ]


def test_bytes_on_the_wire_are_those_of_unique_rows() -> None:
    # One table of one row: whatever the batch, one key and one row of 4 columns travel for 32 samples.
    run = compose_run([*WORDS, "dataset.generator.cardinalities=[1]"])
    hops = {hop.hop: hop.bytes_per_sample * 32 for hop in bytes_per_sample(run)}
    assert list(hops.values()) == [32 * 8 + 33 * 4, 32 * 12, 10, 16, 16 + 32 * 4, 16, 26]


def test_what_cannot_be_compared_is_refused_before_anything_starts() -> None:
    for words, baselines, text in (
        (["cluster=embedded"], ["dense"], "use cluster=local"),
        (["cluster.nn_workers=2"], ["dense"], "nn_workers=1"),
        ([], ["jax"], "there is no baseline 'jax'; there are torch, dense, private"),
    ):
        with pytest.raises(UserError, match=text):
            next(compare(compose_run([*WORDS, *words]), baselines, ["ring"], 4, 1, 2, lambda text: None))


def test_all_modes_of_the_schema_are_offered_with_the_runs_staleness() -> None:
    modes = offered_modes(compose_run([*WORDS, "mode=hybrid", "mode.staleness=7"]))
    assert {"sync", "hybrid"} <= modes.keys()
    assert modes["hybrid"].staleness == 7  # type: ignore[union-attr]
    assert all(mode.kind == name for name, mode in modes.items())
