"""The cost model: fits, traffic and predictions that are computed by hand, and the errors of `persia plan`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from persia_cli.bench.machine import this_machine
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.cost.estimate import REFERENCE, REFERENCE_S, measure_probes, scaled
from persia_cli.cost.frequency import Frequency, frequency_of
from persia_cli.cost.machines import MachineGroup, MachinesFile, read_machines
from persia_cli.cost.measurements import (
    FORMAT,
    MeasuredStep,
    Measurements,
    read_measurements,
    require_same_settings,
    settings_of,
    write_measurements,
)
from persia_cli.cost.model import LOADER, NN, SERVER, TERMS, WORKER, StepSize, Traffic, all_reduce_bytes, fit, traffic
from persia_cli.cost.prediction import Prediction, predict
from persia_cli.errors import UserError
from persia_cli.plan.columns import sparse_features
from scripts.readme import ROOT
from tests.support.small import WORDS

COSTS: dict[str, dict[str, float]] = {
    LOADER: {"batches": 1e-4, "samples": 1e-6},
    WORKER: {"batches": 2e-4, "requests": 1e-4, "ids": 1e-8, "rows": 5e-8, "row_bytes": 2e-10},
    SERVER: {"requests": 1e-4, "rows": 1e-7, "row_bytes": 1e-9, "converted": 3e-9},
    NN: {"batches": 1e-3, "samples": 2e-6, "id_bytes": 1e-9, "multiply_adds": 1e-10, "converted": 2e-9},
}
STEP = StepSize(
    batch=1000, ranks=2, servers=3, dense=5, ids=4.0, id_values=32.0, rows=600.0, row_values=4800.0,
    wire_bytes=9600.0, converted=True, weights=10_000,
)  # fmt: skip
"""Ranks have 500 samples each, with 2,000 ids of dim 8, and 600 rows of 16 bytes in messages."""


def measured(*steps: StepSize) -> list[Mapping[str, float]]:
    return [{role: step.cpu(COSTS, role) for role in TERMS} for step in steps]


SHAPES = [
    replace(STEP, batch=batch, servers=servers, rows=rows, row_values=values, id_values=id_values, converted=converted,
            weights=weights)
    for batch, servers, rows, values, id_values, converted, weights in [
        (500, 1, 300.0, 2400.0, 32.0, False, 10_000),
        (500, 4, 300.0, 2400.0, 32.0, False, 10_000),
        (4000, 1, 1800.0, 14_400.0, 32.0, False, 10_000),
        (4000, 1, 1800.0, 57_600.0, 128.0, False, 20_000),
        (4000, 1, 1900.0, 14_400.0, 32.0, False, 100),
        (4000, 2, 1800.0, 14_400.0, 32.0, True, 10_000),
        (8000, 3, 2500.0, 30_000.0, 32.0, True, 5_000),
    ]
]  # fmt: skip


def test_the_terms_of_a_step_are_counted_by_hand() -> None:
    assert STEP.terms(WORKER) == {"batches": 2, "requests": 6, "ids": 4000, "rows": 1200, "row_bytes": 38_400}
    assert STEP.terms(SERVER) == {"requests": 6, "rows": 1200, "row_bytes": 38_400, "converted": 9600}
    assert STEP.cpu(COSTS, LOADER) == pytest.approx(2 * 1e-4 + 1000 * 1e-6)
    assert STEP.cpu(COSTS, NN, without="multiply_adds") == pytest.approx(2e-3 + 2e-3 + 1.28e-4 + 1.92e-5)


def test_bytes_of_a_sample_are_counted_by_hand() -> None:
    # Of a sample: 4 ids, 5 dense values, 1.2 unique rows, whose keys have 10 bytes and whose values have 16.
    assert traffic(replace(STEP, wire_bytes=600 * 16.0)) == {
        LOADER: pytest.approx(Traffic(0.0, 32 + 20)),
        WORKER: pytest.approx(Traffic(32 + 2 * 19.2, 2 * 12 + 2 * 19.2 + 16)),
        SERVER: pytest.approx(Traffic(2 * 12 + 19.2, 19.2)),
        NN: pytest.approx(Traffic(20 + 19.2 + 16, 19.2)),
    }
    assert all_reduce_bytes(1, 1000) == 0.0
    assert all_reduce_bytes(4, 1000) == pytest.approx(6000.0)


def test_a_fit_finds_the_costs_that_steps_were_made_of() -> None:
    found = fit(SHAPES, measured(*SHAPES))
    for role, costs in COSTS.items():
        assert found[role] == pytest.approx(costs, rel=1e-6)


def test_no_cost_is_below_zero_whatever_was_measured() -> None:
    rng = np.random.default_rng(0)
    noisy = [{role: seconds * rng.uniform(0.5, 2.0) for role, seconds in each.items()} for each in measured(*SHAPES)]
    assert min(cost for costs in fit(SHAPES, noisy).values() for cost in costs.values()) >= 0.0


def test_unique_ids_are_those_of_the_sample() -> None:
    ids = np.array([1, 1, 2, 1] * 64, np.uint64)
    curves = frequency_of({"t": [(ids, np.arange(1, 257))]}, 256)
    assert curves.ids == {"t": 1.0}
    assert curves.unique["t"] == (2.0, 2.0, 2.0)
    assert curves.unique_ids("t", 1.0) == 1.0  # a sample has no more ids than it has look-ups
    assert curves.unique_ids("t", 100.0) == pytest.approx(2.0)


def test_unique_ids_between_sizes_follow_a_power_law_beyond_them_too() -> None:
    curves = Frequency({"t": 1.0}, (100, 400), {"t": (10.0, 20.0)})
    assert curves.unique_ids("t", 200.0) == pytest.approx(10 * 2**0.5)
    assert curves.unique_ids("t", 1600.0) == pytest.approx(40.0)


def run_of(*words: str) -> Run:
    return compose_run([*WORDS, *words])


def measurements(run: Run) -> Measurements:
    steps = [
        MeasuredStep(str(number), step, dict(cpu), 1.0, 0.0, 1)
        for number, (step, cpu) in enumerate(zip(SHAPES, measured(*SHAPES), strict=True))
    ]
    return Measurements(FORMAT, "0", this_machine(), settings_of(run), tuple(steps))


def one_id_of_each_table(run: Run) -> Frequency:
    names = [feature.table_name for feature in sparse_features(run)]
    return Frequency(dict.fromkeys(names, 1.0), (1, 1024), dict.fromkeys(names, (1.0, 1.0)))


def plan(run: Run, *kinds: MachineGroup, wanted: float | None = None) -> Prediction:
    basis = measurements(run).basis(Path("costs.json"))
    return predict(run, 1000, basis, one_id_of_each_table(run), MachinesFile(machines=kinds), wanted)


# Of a step of 32 samples with 2 unique rows of dim 4, in seconds of CPU:
LOADING, PLANNING, SERVING, TRAINING = 1.32e-4, 3.007464e-4, 1.00232e-4, 1.068224e-3


def test_the_slowest_role_limits_a_pipeline() -> None:
    found = plan(run_of("mode=hybrid"), MachineGroup(name="m", cores=4, memory=2**30))
    assert found.bottleneck == NN
    assert found.samples_per_s == pytest.approx(32 / TRAINING)
    assert {role.role: role.limit for role in found.roles} == pytest.approx(
        {LOADER: 32 / LOADING, WORKER: 32 / PLANNING, SERVER: 32 / SERVING, NN: 32 / TRAINING}
    )
    assert found.limits["cores of m"] == pytest.approx(4 * 32 / (LOADING + PLANNING + SERVING + TRAINING))


def test_in_sync_mode_roles_wait_for_each_other() -> None:
    found = plan(run_of("mode=sync"), MachineGroup(name="m", cores=4, memory=2**30))
    assert found.samples_per_s == pytest.approx(32 / (PLANNING + SERVING + TRAINING))


def test_all_roles_share_the_cores_of_one_machine() -> None:
    found = plan(run_of("mode=hybrid"), MachineGroup(name="m", cores=1, memory=2**30))
    assert found.bottleneck == "cores of m"
    assert found.samples_per_s == pytest.approx(32 / (LOADING + PLANNING + SERVING + TRAINING))
    assert found.machines[0].cores == pytest.approx(1.0)
    assert found.machines[0].needed == 1


def test_replicas_machines_and_price_follow_from_a_speed() -> None:
    kind = MachineGroup(name="m", cores=2, memory=2**30, price_per_hour=3.6)
    found = plan(run_of("mode=hybrid"), kind, wanted=30_500)
    needed = {role.role: role.needed for role in found.roles}
    assert needed[NN] == 2  # one reaches 29,956 samples/s, two 64 / 2.068 ms
    assert needed[SERVER] == 1
    [machines] = found.machines
    assert machines.needed == 2  # 3.1 ms of CPU for 32 samples, 30,500 a second, on 2 cores
    assert machines.price_per_hour == pytest.approx(2 * 3.6)
    assert found.price_per_million == pytest.approx(2 * 0.001 / 30_500 * 1e6)
    assert plan(run_of("mode=hybrid"), kind.model_copy(update={"price_per_hour": None})).price_per_million is None


def test_gpus_and_networks_are_limits() -> None:
    run = run_of("mode=hybrid", "cluster.nn_workers=2")
    front = MachineGroup(name="f", count=2, cores=64, memory=2**30, network=1e-3, gpus=1, gpu_tflops=1e-4,
                        roles=("nn-worker", "data-loader"))  # fmt: skip
    back = MachineGroup(name="b", cores=64, memory=2**30, roles=("embedding-worker", "embedding-server"))
    found = plan(run, front, back)
    # 2 x 1e8 operations a second, a quarter of them used, 6 for each of 1000 weights.
    assert found.limits["GPUs of f"] == pytest.approx(2 * 1e8 * 0.25 / 6000)
    # The most that a sample sends or receives on these machines is what loaders send: 2 ids and 3 values, and rows'
    # gradients, 2 x 2 rows of 16 bytes in 32 samples; and 4,000 bytes of dense gradients on each machine in a step.
    assert found.limits["network of f"] == pytest.approx(2 * 1e6 / 8 / (28 + 64 / 32 + 2 * 4000 / 32))


def test_rows_that_do_not_fit_are_told_with_the_machines_that_they_need() -> None:
    run = run_of("mode=hybrid", "embedding.capacity=100_000_000")
    [machines] = plan(run, MachineGroup(name="m", cores=64, memory=2**30)).machines
    assert not machines.fits
    assert machines.needed == -(-machines.memory // (0.9 * 2**30))


@pytest.mark.parametrize(
    ("words", "speed"), [(["mode=hybrid"], 1e9), (["mode=sync"], 60_000.0)], ids=["more ranks", "sync"]
)
def test_a_speed_that_nothing_reaches_is_refused(words: list[str], speed: float) -> None:
    with pytest.raises(UserError, match="predicted"):
        plan(run_of(*words), MachineGroup(name="m", cores=64, memory=2**30), wanted=speed)


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    known = measurements(run_of())
    write_measurements(tmp_path / "costs.json", known)
    assert read_measurements(tmp_path / "costs.json") == known


@pytest.mark.parametrize("text", [None, "{}", "no JSON", '{"format": 1, "more": 2}'])
def test_a_file_without_measurements_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match="persia bench costs"):
        read_measurements(file)


@pytest.mark.parametrize("setting", ["optimizer=sgd", "embedding.dtype=bfloat16", "train.precision=bfloat16"])
def test_measurements_of_other_arithmetic_are_refused(setting: str) -> None:
    with pytest.raises(UserError, match="persia bench costs"):
        require_same_settings(run_of(setting), measurements(run_of()))


def test_an_estimate_scales_each_cost_by_its_cause() -> None:
    assert scaled(REFERENCE_S) == REFERENCE
    slow_arithmetic = scaled(REFERENCE_S | {"arithmetic": 3 * REFERENCE_S["arithmetic"]})
    assert slow_arithmetic[NN]["multiply_adds"] == pytest.approx(3 * REFERENCE[NN]["multiply_adds"])
    assert slow_arithmetic[SERVER] == REFERENCE[SERVER]
    slow_messages = scaled(REFERENCE_S | {"messages": 2 * REFERENCE_S["messages"]})
    assert slow_messages[WORKER]["requests"] == pytest.approx(2 * REFERENCE[WORKER]["requests"])
    assert slow_messages[WORKER]["ids"] == REFERENCE[WORKER]["ids"]


def test_the_probes_of_an_estimate_measure_this_machine() -> None:
    probes = measure_probes()
    assert probes.keys() == REFERENCE_S.keys()
    assert all(0.0 < seconds < 5.0 for seconds in probes.values())  # of a busy machine too


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("machines: [{name: m, cores: 2, memory: 1GiB, disks: 3}]", "disks"),
        ("machines: [{name: m, cores: 2, memory: 1GiB}]\ncomment: x", "comment"),
        ("machines: [{name: m, memory: 1GiB}]", "cores"),
        ("machines: [{name: m, cores: 2, memory: lots}]", "memory"),
        ("machines: [{name: m, cores: 2, memory: 1GiB, gpus: 1}]", "gpu_tflops"),
        ("machines: [{name: m, cores: 2, memory: 1GiB, roles: [nn-worker]}]", "data-loader"),
        ("machines: []", "machines"),
        ("machines: [", "machines.yaml"),
        (None, "machines.yaml"),
    ],
)
def test_a_mistake_in_a_machines_file_is_named(text: str | None, named: str, tmp_path: Path) -> None:
    file = tmp_path / "machines.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as refused:
        read_machines(file)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_papers_cluster_is_a_machines_file() -> None:
    found = read_machines(ROOT / "docs" / "measured" / "paper_cluster.yaml")
    assert sum(kind.count * kind.cores for kind in found.machines if "embedding-worker" in kind.roles) == 3000
    assert sum(kind.count * kind.gpus for kind in found.machines) == 64
