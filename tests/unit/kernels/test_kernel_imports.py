"""Roles load fast: kernels and the store import no torch, config or screen; roles without kernels no numba."""

import subprocess
import sys

import pytest

SAVE = """
import sys
from pathlib import Path
import numpy as np
from persia_cli.store.shard import Shard
from tests.support.saving import save_shard
from tests.support.shards import layout_of
shard = Shard(layout_of(when_full="evict_lfu"), 0, 1)
table = shard.layout.groups[0].tables[0].number
keys = np.arange(9, dtype=np.uint64)
shard.look_up(0, keys, np.full(9, table, np.uint16), 1, create=True)
files = save_shard(shard, Path(sys.argv[1]) / "embeddings")
print(sum(sum(file.rows.tables.values()) for file in files if file.rows), "pandas" in sys.modules)
"""
"""A save of nine rows and their sketch; prints how many rows there are, and if pandas was imported."""


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            ("kernels.toolchain.warm", "store.checkpoints.row_files", "store.batch_rows"),
            ("torch", "hydra", "rich", "typer", "zmq"),
        ),
        (
            ("roles.data_loader", "roles.coordinator.coordinator", "engines.local"),
            ("numba", "llvmlite", "torch", "hydra", "rich"),
        ),
        (("roles.coordinator.coordinator",), ("pyarrow.compute", "pyarrow.parquet")),
        (("engines.kernels",), ("numba", "llvmlite")),
    ],
    ids=["the store", "roles without kernels", "the coordinator", "asking for kernels"],
)
def test_they_import_nothing_heavy(modules, heavy):
    names = ", ".join(f"persia_cli.{name}" for name in modules)
    program = f"import sys; import {names}; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


MERGE = """
import sys
import numpy as np
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.wire.job_messages import ScoreCounts
codes = np.arange(2**31, 2**31 + 9_000, dtype=np.uint64)
scores = ScoreHistogram(1, limit=1_000)
for _ in range(2):
    scores.merge_encoded(ScoreCounts(codes, np.ones(9_000), np.zeros((1, 7))))
print(scores.auc() is not None, "numba" in sys.modules)
"""
"""A merge of the scores of two reports, as the coordinator does it at each line of metrics."""


def test_lines_of_metrics_need_no_numba():
    done = subprocess.run([sys.executable, "-c", MERGE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_save_does_not_wait_for_pandas(tmp_path):
    """Rows, tables and the sketch become Arrow arrays without it, which pyarrow would import first."""
    done = subprocess.run([sys.executable, "-c", SAVE, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9", "False"]
