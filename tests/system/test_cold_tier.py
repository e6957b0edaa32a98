"""Rows that leave memory for a disk return unchanged: a training with too little memory is that with enough."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from persia_cli.dashboard.curves import new_curves
from persia_cli.dashboard.panels import GROUPS
from persia_cli.engines.job import JobResult, result_of
from persia_cli.jobs.result import lost_rows
from tests.support.jobs import CRITEO_FFNN, train
from tests.support.launched import Launched
from tests.support.small import WORDS, figures
from tests.system.test_kills import CLUSTER, LIMIT_S, MANY, kill_all
from tests.system.test_kills import SIZE as SIZE_OF_DATA
from tests.system.test_resume import persia
from tests.system.test_retrieval import words as words_of_retrieval
from tests.system.test_row_policies import counted

STEPS, MEMORY, SIZE = 60, 3 * 2**20, 5 * 2**20
OF_MEMORY = ("rows", "evicted", "memory_hit_rate")
"""Metrics of the places of rows."""


def lines(result: JobResult) -> list[dict[str, object]]:
    return [{key: line[key] for key in line if "cold" not in key and key not in OF_MEMORY} for line in figures(result)]


@pytest.mark.parametrize("kind", ["embedded", pytest.param("local", marks=pytest.mark.slow)])
def test_a_training_beyond_memory_has_the_bits_of_one_within(kind: str, criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", f"train.steps={STEPS}", "train.batch_size=128"]
    words += ["model.dim=4", "model.hidden=[8]", "train.log_every_steps=20", f"cluster={kind}"]
    words += ["cluster.embedding_servers=2"]
    place = tmp_path / "disk"
    cold = [f"embedding.memory={MEMORY}", f"embedding.cold={{path: '{place}', size: {SIZE}, threads: 2}}"]
    within, beyond = train(words, tmp_path / "within"), train([*words, *cold], tmp_path / "beyond")
    assert lines(beyond) == lines(within)
    last = beyond.metrics[-1]
    assert last["rows"] + last["cold_rows"] == within.metrics[-1]["rows"] > 1.5 * last["rows"]
    training = [line for line in beyond.metrics if line["split"] == "train"]
    assert all(0 < line["memory_hit_rate"] + line["cold_hit_rate"] <= 1 for line in training)
    assert training[-1]["cold_hit_rate"] > 0 < training[-1]["cold_wait_ms"]
    assert 0 < last["cold_written"] <= SIZE
    assert counted(beyond, "cold_rows") == last["cold_rows"]
    assert counted(beyond, "refused") == counted(beyond, "dropped") == last["cold_dropped"] == 0
    assert lost_rows(beyond.events) == ""
    assert list(place.iterdir()) == []
    shown = persia("table", "stats", beyond.run_dir, "--json")
    tables = json.loads(shown.stdout)["tables"]
    assert sum(table["counters"]["returned"] for table in tables.values()) == counted(beyond, "returned") > 0
    assert sum(table["bytes"] for table in tables.values()) <= MEMORY
    keys = [new_curves(result.run_dir, "", 100)[0]["train"].keys() for result in (within, beyond)]
    panels = [panel for group in GROUPS.values() for panel in group]
    titles = [{panel.title for panel in panels if panel.curves.keys() & each} for each in keys]
    assert titles[1] - titles[0] == {
        "Rows found in memory and on disks", "Wait for disks", "Reads from disks", "Writes to disks", "Rows lost",
    }  # fmt: skip


def test_a_saved_model_is_judged_with_its_rows_on_disks(tmp_path: Path) -> None:
    """Commands that load a model into one process need no disk, and read all rows whatever the run's memory was."""
    draw = np.random.default_rng(3)
    for name, rows in (("train", 1500), ("eval", 200)):
        user, item = draw.integers(0, 400, rows), draw.integers(0, 150, rows)
        table = {"user": user, "age": user % 4, "item": item, "tags": item % 3, "label": (user + item) % 3 == 0}
        pd.DataFrame(table).astype({"label": float}).to_parquet(tmp_path / f"{name}.parquet")
    words = [word for word in words_of_retrieval(tmp_path, write=False) if not word.startswith("dataset.sparse")]
    words += ["dataset.sparse=[user, age, item, tags]"]
    cold = ["embedding.capacity=300", f"embedding.cold={{path: '{tmp_path / 'disk'}', size: 2MiB}}"]
    within, beyond = train(words, tmp_path / "within"), train([*words, *cold], tmp_path / "beyond")
    assert counted(beyond, "cold_rows") > 100
    for given in (("--importance", "--json"), ("--retrieval",)):
        expected, found = (persia("eval", run.run_dir, *given) for run in (within, beyond))
        assert found.exit_code == 0, found.output
        assert found.stdout == expected.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_processes_change_no_bit(tmp_path: Path) -> None:
    """The next process of a server continues with its files; a job that goes back begins with empty ones."""
    words, disk = [*WORDS, *SIZE_OF_DATA, "train.log_every_steps=5"], tmp_path / "disk"
    undisturbed = train([*words, "cluster=embedded"], tmp_path / "undisturbed")
    cold = ["embedding.capacity=160", f"embedding.cold={{path: '{disk}', size: 2MiB}}"]
    with Launched([*words, *CLUSTER, *MANY, *cold], tmp_path / "run") as job:
        for number, role in enumerate(
            ["embedding-server-0", "embedding-server-0", "nn-worker-0", "embedding-server-0"]
        ):
            assert kill_all(job, (role,), 60 + 100 * number), job.output[-3000:]
        code, _ = job.end(within_s=LIMIT_S)
        assert code == 0, job.output[-3000:]
    result = result_of(job.run_dir)
    assert lines(result) == lines(undisturbed)
    assert counted(result, "returned") > 1000
    assert result.metrics[-1]["cold_rows"] > 100
    assert list(disk.iterdir()) == []
