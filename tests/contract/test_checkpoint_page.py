"""The pages of the run directory, journals and checkpoints name all files, keys and columns of a run."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from persia_cli.engines.job import JobResult
from persia_cli.metric import AIMS
from persia_cli.observe.journal_keys import EVENT_KINDS, METRIC_KEYS
from persia_cli.store.checkpoints.manifest import Manifest, SavedTable
from persia_cli.store.checkpoints.retention import BestPointer
from persia_cli.store.checkpoints.saved import SavedFile, SavedRows
from persia_cli.store.layout import OptimizerKind, RowOptimizer
from persia_cli.store.table_counters import TableCounters
from scripts import reference_journals
from tests.support.checkpoints import read_rows
from tests.support.jobs import train
from tests.support.small import WORDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = reference_journals.page() + "".join(
    (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("run-directory", "checkpoint-format")
)
SOURCES = [text for path in (ROOT / "persia_cli").rglob("*.py") if "event=" in (text := path.read_text("utf-8"))]
"""The modules that write events."""


def unnamed(names: Any) -> list[str]:
    """Return the names that the pages do not have as code."""
    return sorted(name for name in set(names) if f"`{name}`" not in PAGE)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """A short run with an evaluation, a best checkpoint and ranks that report more than once."""
    words = [*WORDS, "cluster=embedded", "train.steps=20", "eval.every_steps=10", "checkpoint.best_by=log_loss"]
    return train(words, tmp_path_factory.mktemp("page") / "run")


def test_every_file_of_a_run(result: JobResult) -> None:
    checkpoint = r"checkpoints/step-\d+/"
    paths = [str(path.relative_to(result.run_dir)) for path in result.run_dir.rglob("*") if path.is_file()]
    assert any(re.match(checkpoint, path) for path in paths)
    outside = [path for path in paths if not re.match(checkpoint, path)]
    assert unnamed(outside) == []
    inside = {
        re.sub(f"{checkpoint}((embeddings|frequencies)/group.*)?", "", path) for path in set(paths) - set(outside)
    } - {""}
    assert unnamed(Path(path).name for path in inside - {"manifest.json"}) == []
    folders = {Path(path).parent.name for path in set(paths) - set(outside)}
    assert [folder for folder in folders if not folder.startswith("step-") and f"{folder}/" not in PAGE] == []


def test_every_key_of_metrics_is_declared(result: JobResult) -> None:
    assert {line["split"] for line in result.metrics} == {"train", "eval"}
    assert set(AIMS) <= set(METRIC_KEYS)
    for line in result.metrics:
        lines = {"all", "train" if line["split"] == "train" else "eval"}
        declared = {key for key, metric in METRIC_KEYS.items() if metric.lines in lines}
        assert {key.removeprefix("window_") for key in line} <= declared


def test_every_event_and_its_keys_are_declared(result: JobResult) -> None:
    written = [(event["event"], set(event) - {"time", "event"}) for event in result.events]
    for node in (node for text in SOURCES for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Call):
            fields = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            if isinstance(kind := fields.pop("event", None), ast.Constant):
                written.append((kind.value, set(fields)))
    assert [(kind, keys) for kind, keys in written if not keys <= set(EVENT_KINDS[kind].keys)] == []
    assert {kind for kind, _ in written} | {"save_failed", "cut"} == set(EVENT_KINDS)


def test_every_counter_of_tables_is_declared(result: JobResult) -> None:
    [tables] = [event["tables"] for event in result.events if event["event"] == "tables"]
    assert unnamed(counter for counters in tables.values() for counter in counters) == []
    assert unnamed(field.name for field in fields(TableCounters)) == []


def test_every_key_of_manifest_and_best_note(result: JobResult) -> None:
    assert unnamed(field.name for kind in (Manifest, SavedFile, SavedRows, SavedTable, BestPointer)
                   for field in msgspec.structs.fields(kind)) == []  # fmt: skip
    [best] = result.run_dir.glob("checkpoints/best.json")
    assert unnamed(json.loads(best.read_text())) == []


def test_every_column_of_rows(result: JobResult) -> None:
    import pyarrow.feather

    [file, *_] = result.run_dir.glob("checkpoints/*/embeddings/*.arrow")
    table = pyarrow.feather.read_table(file)
    assert unnamed(table.column_names) == []
    assert unnamed(key.decode() for key in table.schema.metadata) == []
    assert read_rows(file.parents[1])


def test_the_states_of_every_optimizer() -> None:
    for kind in get_args(OptimizerKind):
        states = RowOptimizer(kind, 0.1).states(7)
        line = next((line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` | ")), "")
        assert line, f"docs/checkpoint-format.md has no line for the states of {kind}"
        named = re.findall(r"`(\w+)`", line)[1:]
        assert named == list(states)
        columns = {7: "dim", 1: "1"}
        assert all(line.split("|")[3].strip() == columns[count] for count in states.values())
