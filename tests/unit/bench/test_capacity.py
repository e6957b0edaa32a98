"""Sizes of models, and the ids that they have."""

import mmap
import os
from dataclasses import replace

import numpy as np
import pytest

from persia_cli.bench.capacity import (
    SKEW,
    cardinalities_of,
    memory_of_servers,
    parse_sizes,
    planted_auc,
    round_ratio,
    since,
    size_text,
    sized_run,
)
from persia_cli.bench.rounds import MeasuredTurn
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.data.read.generator import GeneratedRows
from persia_cli.store.memory_file import new_file

CRITEO = compose_run(["conf=criteo"])
SHAPE = CRITEO.dataset.generator.cardinalities  # type: ignore[union-attr]


def test_sizes_are_numbers_of_parameters_in_ascending_order() -> None:
    sizes = parse_sizes("100T, 10m,6.25T,10M,1B,5000")
    assert sizes == [5000, 10**7, 10**9, 6_250_000_000_000, 10**14]
    assert [parse_sizes(size_text(size).replace(" ", "")) for size in sizes] == [[size] for size in sizes]


@pytest.mark.parametrize("parameters", [10**7, 10**9, 10**14])
@pytest.mark.parametrize("dim", [16, 128])
def test_ids_times_dim_are_the_parameters_and_small_tables_stay(parameters: int, dim: int) -> None:
    ids = parameters // dim
    tables = cardinalities_of(SHAPE, ids)
    assert sum(tables) == pytest.approx(ids, abs=len(SHAPE))
    assert [after for before, after in zip(SHAPE, tables, strict=True) if before < 10_000] == [
        size for size in SHAPE if size < 10_000
    ]


def test_the_skew_is_that_of_criteo() -> None:
    generator = CRITEO.dataset.generator
    assert generator is not None
    batch = GeneratedRows(generator.model_copy(update={"zipf": SKEW}), 1, 0).rows(0, 4096)
    distinct = sum(np.unique(ids).size for ids in batch.ids.reshape(batch.features, -1))
    assert distinct == pytest.approx(23_793, rel=0.02)


def test_a_run_of_100_trillion_parameters_is_valid_and_has_ids_beyond_32_bits() -> None:
    sized = sized_run(CRITEO, 10**14, 100)
    assert Run.model_validate_json(sized.model_dump_json()) == sized
    generator = sized.dataset.generator
    assert generator is not None
    assert GeneratedRows(generator, 1, 0).rows(0, 4096).ids.max() > 2**32


def test_no_model_is_better_than_the_planted_one_and_it_is_better_than_chance() -> None:
    noise = {"signal": 0.0, "train_rows": 100, "eval_rows": 20_000}
    generator = CRITEO.dataset.generator
    assert generator is not None
    aucs = []
    for settings in (noise, noise | {"signal": 1.4}):
        dataset = CRITEO.dataset.model_copy(update={"generator": generator.model_copy(update=settings)})
        aucs.append(planted_auc(sized_run(CRITEO.model_copy(update={"dataset": dataset}), 10**9, 100)))
    assert aucs[0] == pytest.approx(0.5, abs=0.01)
    assert 0.75 < aucs[1] < 0.9


def test_hit_rates_of_the_steps_between_two_lines() -> None:
    # 10 steps with half of their ids known, then 30 steps with all of them.
    before, after = {"step": 10, "hit_rate": 0.5}, {"step": 40, "hit_rate": 35 / 40}
    assert since(before, after, "hit_rate") == pytest.approx(1.0)


def test_speeds_are_compared_within_rounds() -> None:
    turn = MeasuredTurn(100, 1.0, {})
    # The third round was disturbed, for both.
    theirs = [turn, turn, replace(turn, seconds=5.0)]
    ours = [replace(each, seconds=each.seconds * 2) for each in theirs]
    assert round_ratio(ours, theirs) == pytest.approx(0.5)


def test_memory_of_servers_is_that_of_their_files() -> None:
    file = new_file("embedding-server-0")
    os.ftruncate(file, 2**20)
    with mmap.mmap(file, 2**20) as pages:
        pages[: 2**18] = bytes([1]) * 2**18
        pids = {"embedding-server-0": os.getpid(), "nn-worker-0": os.getpid()}
        assert 2**18 <= memory_of_servers(pids) <= 2**20
    assert memory_of_servers(pids) == 0
    os.close(file)
