"""A plan refuses a network that does not fit its data or its ranks, without importing torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persia_cli.errors import ConfigError
from persia_cli.plan.job import plan_job
from persia_cli.store.layout import MAX_ROWS
from tests.support.runs import make_facts, make_run

DLRM = {"kind": "dlrm", "dim": 8, "bottom": [4], "top": [4]}
DIN = {"kind": "din", "dim": 8, "attention": [4], "hidden": [4]}
DEEPFM = {"kind": "deepfm", "dim": 8, "hidden": [4]}
FINAL = {"kind": "finalmlp", "dim": 8, "first": [4], "second": [4], "heads": 1}
SEQUENCE = {"name": "last", "pooling": "none", "max_length": 5}
SGD = {"kind": "sgd", "lr": 0.1}


def plan(**changes: Any) -> None:
    run = make_run(**changes)
    plan_job(run, make_facts(run, 100, 20), "train", Path("runs/a"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": DLRM, "dataset": {"dense": []}}, "model.kind=dlrm has a part for .* the data set has no dense ones"),
        ({"sparse": ["a", SEQUENCE]}, "model.kind=ffnn takes one vector per feature, but pooling is none for last"),
        ({"sparse": [], "model": DEEPFM}, "model.kind=deepfm works on embeddings, but .* no sparse features"),
        (
            {"sparse": ["item", SEQUENCE], "model": DIN | {"attend": {"item": ["last"]}}},
            "model.attend.item: last does not read the table of item",
        ),
        ({"sparse": ["a", SEQUENCE], "model": DIN | {"attend": {"a": ["lats"]}}}, "model.attend.a=lats: .* mean last?"),
        ({"model": FINAL | {"gate": {"hidden": [4], "first": ["c"]}}}, "model.gate.first=c: needs a sparse feature"),
        (
            {"model": DEEPFM, "embedding": {"tables": {"a": {"dim": 4}}}},
            r"model.kind=deepfm needs rows of model.dim=8 .* a \(4\)",
        ),
        (
            {"mode": {"kind": "async"}, "train": {"batch_size": 32, "device": "cuda"}},
            "train.device=cuda: with mode.kind=async",
        ),
        ({"embedding": {"capacity": 2 * MAX_ROWS}}, "on one embedding server, which numbers at most 4,294,967,294"),
    ],
)
def test_it_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan(**changes)


def test_more_rows_fit_on_more_servers() -> None:
    cluster = {"kind": "local", "embedding_servers": 4}
    plan(embedding={"capacity": 2 * MAX_ROWS}, cluster=cluster)


def test_planning_does_not_import_torch() -> None:
    code = "import sys, persia_cli.plan.job, persia_cli.engines.readiness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
