"""Ratios, targets and the sentence on the bottleneck follow from what was measured."""

import pytest

from persia_cli.bench import targets
from persia_cli.bench.bottleneck import bottleneck
from persia_cli.bench.compare import Side, compare
from persia_cli.bench.modes import offered_modes
from persia_cli.bench.stages import Stage, stages_of
from persia_cli.bench.traffic_bytes import bytes_per_sample
from persia_cli.bench.turns import INTERVALS, turn_steps
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.observe.processor import Processor
from persia_cli.observe.trace import ReplicaTrace, Span
from tests.support.small import WORDS

TURIN = Processor("EPYC", ("avx2", "avx512f", "avx512_bf16"))
TARGET = ["conf=criteo", "train.batch_size=4096", "optimizer=adagrad", "cluster.embedding_servers=2"]


@pytest.mark.parametrize(
    ("words", "dense", "torch"),
    [
        ([], 0.95, 1.03),
        (["train.threads=2"], 0.85, 1.03),
        (["train.batch_size=512"], None, None),
        (["mode=sync"], None, None),
        (["model.dim=32"], None, None),
    ],
)
def test_targets_hold_for_the_run_they_are_set_for(words: list[str], dense: float | None, torch: float | None) -> None:
    run = compose_run([*TARGET, *words])
    assert tuple(targets.throughput_target(run, baseline, TURIN) for baseline in ("dense", "torch")) == (dense, torch)


def test_no_bar_is_missed_for_a_precision_that_the_processor_is_slow_at() -> None:
    run = compose_run([*TARGET, "train.precision=bfloat16"])
    cascade_lake = Processor("Xeon", ("avx2", "avx512f", "avx512_vnni"))
    assert [targets.throughput_target(run, "dense", each) for each in (TURIN, cascade_lake)] == [0.9, None]


def test_a_turn_measures_as_many_steps_as_asked_after_a_warm_up() -> None:
    assert [turn_steps(steps) for steps in (1, 4, 48)] == [5, 5, 60]
    assert all(turn_steps(steps) % INTERVALS == 0 for steps in range(1, 50))
    assert all(turn_steps(steps) * (INTERVALS - 1) / INTERVALS >= steps for steps in range(1, 50))


def side(cpu_ms: dict[str, float], step_ms: float, busy: float = 0.0) -> Side:
    rate = 32 / step_ms * 1e3
    return Side("persia", rate, rate, rate, cpu_ms, busy)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    return compose_run(WORDS)


def test_the_nn_worker_that_never_rests_is_the_bottleneck(run: Run) -> None:
    ours = side({"nn-worker-0": 98.0, "embedding-worker-0": 5.0, "data-loader-0": 7.0, "coordinator-0": 1.0}, 100.0)
    dense = Side("dense", 336.0, 336.0, 336.0, {}, 0.0)
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


def test_nobody_busy_means_waiting(run: Run) -> None:
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
    assert stages_of([ReplicaTrace("nn-worker-0", "boot", 0, 0, spans)], 2) == [
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
        ([], ["jax"], "there is no baseline 'jax'; there are torch, dense"),
    ):
        with pytest.raises(UserError, match=text):
            next(compare(compose_run([*WORDS, *words]), baselines, ["ring"], 4, 1, 2, lambda text: None))


def test_all_modes_of_the_schema_are_offered_with_the_runs_staleness() -> None:
    modes = offered_modes(compose_run([*WORDS, "mode=hybrid", "mode.staleness=7"]))
    assert {"sync", "hybrid"} <= modes.keys()
    assert modes["hybrid"].staleness == 7  # type: ignore[union-attr]
    assert all(mode.kind == name for name, mode in modes.items())
