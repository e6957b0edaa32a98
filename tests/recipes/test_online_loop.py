"""The recipe of the whole loop: the model that follows beats the frozen one, and each shown item is a sample once."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from persia_cli.data.prepare.recipe import folder_of
from recipes.online_loop import report


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_model_that_follows_beats_a_frozen_one(tmp_path: Path) -> None:
    folder = tmp_path / "loop"
    command = [sys.executable, str(folder_of("online_loop") / "run.py"), str(folder), "--seconds", "90"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=380)
    logs = "\n".join(file.read_text() for file in sorted((folder / "logs").glob("*.log")))
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{logs}"
    half = report.slices(folder)[-1]
    assert half.samples > 500
    assert half.following > half.frozen + 0.02
    assert (folder / "auc.svg").read_text().startswith("<svg")
    _history, *joined = sorted((folder / "samples").glob("*.parquet"))
    shown = [
        tuple(row.values())
        for file in joined
        for row in pq.read_table(file, columns=["request_id", "item"]).to_pylist()
    ]
    assert len(set(shown)) == len(shown)
