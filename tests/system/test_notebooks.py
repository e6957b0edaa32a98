"""The example notebooks run, and progress in a notebook is one line that changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # those of Jupyter are not ours
]


EXECUTE = """
import nbclient, nbformat, sys
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, allow_errors=True).execute()
nbformat.write(notebook, "executed.ipynb")
"""


def executed(path: Path, folder: Path) -> list[list[dict[str, Any]]]:
    """Run a notebook in a folder, by another process; returns the outputs of each cell."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    ended = subprocess.run([sys.executable, "-c", EXECUTE, path], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return [cell.get("outputs", []) for cell in json.loads((folder / "executed.ipynb").read_text())["cells"]]


def texts_of(outputs: list[dict[str, Any]]) -> list[str]:
    return ["".join(each.get("text") or each.get("data", {}).get("text/plain", "")) for each in outputs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    assert not any(cell.get("outputs") for cell in json.loads(path.read_text())["cells"])
    cells = executed(path, tmp_path)
    assert [output["evalue"] for outputs in cells for output in outputs if output["output_type"] == "error"] == []
    progress = [sum(text.startswith("training  step") for text in texts_of(outputs)) for outputs in cells]
    assert (sum(progress) > 0, max(progress)) == (True, 1)  # one line for each job, which changes
    assert list(tmp_path.glob("runs/*/metrics.jsonl"))


CELLS = (
    """
import os
import persia_cli as persia
settings = ["cluster=embedded", "model.hidden=[8]", "train.epochs=1000", "train.stop_early=null"]
interrupt = lambda line: os.kill(os.getpid(), 2)  # as Jupyter does
persia.train("base", *settings, "checkpoint.best_by=null", folder="run", on_metrics=interrupt)
""",
    "persia.open('run').state",
)


def test_an_interrupted_cell_saves_and_stops(tmp_path: Path) -> None:
    v4 = pytest.importorskip("nbformat.v4")
    path = tmp_path / "interrupted.ipynb"
    path.write_text(json.dumps(v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])))
    first, second = executed(path, tmp_path)
    assert first[-1]["ename"] == "KeyboardInterrupt"
    assert texts_of(second) == ["'stopped'"]
    assert list(tmp_path.glob("run/checkpoints/step-*/manifest.json"))
