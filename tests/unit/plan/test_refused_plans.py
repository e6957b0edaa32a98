"""A plan refuses a network or settings that do not fit their data, ranks or losses, and no others."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from persia_cli.errors import ConfigError
from persia_cli.plan.job import plan_job
from persia_cli.store.layout import MAX_ROWS
from tests.support.runs import make_facts, make_run

FFNN = {"kind": "ffnn", "dim": 8, "hidden": [4]}
ESMM = {"kind": "esmm", "dim": 8, "hidden": [4]}
BRANCHES = {"kind": "branches", "dim": 8, "dense": 4, "sparse": 4, "hidden": [4]}
TOWERS = {"kind": "two_tower", "dim": 8, "hidden": [4], "width": 4, "user": ["a"], "item": ["b"]}
TWO = {"labels": ["click", "count"], "group_by": "a"}
LOCAL = {"kind": "local", "nn_workers": 2}


def plan(task: Any = "train", **changes: Any) -> None:
    plan_job(run := make_run(**changes), make_facts(run, 100, 20), task, Path("runs/a"))


@pytest.mark.parametrize("kind", ["pairwise", "bpr"])
def test_a_base_rate_is_not_for_losses_of_differences(kind: str) -> None:
    changes: dict[str, Any] = {"dataset": TWO, "train": {"batch_size": 32, "losses": {"count": {"kind": kind}}}}
    with pytest.raises(ConfigError, match=f"output_bias=base_rate .* train.losses.count.kind={kind}, which only"):
        plan(model=FFNN | {"output_bias": "base_rate"}, **changes)
    plan(model=FFNN | {"output_bias": "zero"}, **changes)


@pytest.mark.parametrize("kind", ["mse", "huber", "poisson"])
def test_esmm_multiplies_probabilities(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"^model.kind=esmm .* train.losses.count.kind={kind} predicts a number"):
        plan(model=ESMM, dataset=TWO, train={"batch_size": 32, "losses": {"count": {"kind": kind}}})


def test_an_uncertainty_is_not_learned_of_losses_below_zero() -> None:
    train = {"batch_size": 32, "task_weights": "uncertainty"}
    with pytest.raises(ConfigError, match=r"^train.task_weights=uncertainty .* train.losses.count.kind=poisson is"):
        plan(dataset=TWO, train=train | {"losses": {"count": {"kind": "poisson"}}})
    plan(dataset=TWO, train=train | {"losses": {"count": {"kind": "huber"}}})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": {"losses": {"click": {"kind": "pairwise"}}}}, "train.losses.click.kind=pairwise compares samples"),
        ({"train": {"losses": {"click": {"kind": "in_batch_softmax"}}}, "model": TOWERS}, "softmax compares samples"),
        ({"model": FFNN | {"norm": "batch"}}, "^model.norm=batch "),
        ({"model": FFNN | {"activation": ["dice"]}}, "^model.activation=dice normalises over the samples of a step"),
        ({"model": BRANCHES}, "^model.kind=branches normalises over the samples of a step"),
    ],
)
def test_one_sample_is_compared_with_nothing(changes: dict[str, Any], sentence: str) -> None:
    train = changes.pop("train", {})
    with pytest.raises(ConfigError, match=sentence):
        plan(**changes, train=train | {"batch_size": 1})
    plan(**changes, train=train | {"batch_size": 2})
    if "losses" in train:  # an evaluation learns nothing
        plan("evaluate", **changes, train=train | {"batch_size": 1})


def test_parts_and_ranks_have_separate_samples() -> None:
    norm, pairs = FFNN | {"norm": "batch"}, {"losses": {"click": {"kind": "pairwise"}}}
    with pytest.raises(ConfigError, match=r"train.accumulate"):
        plan(model=norm, train={"batch_size": 8, "accumulate": 8})
    plan(model=norm, train={"batch_size": 8, "accumulate": 4})
    plan(cluster=LOCAL, train={"batch_size": 2} | pairs)
    with pytest.raises(ConfigError, match="kind=pairwise compares samples of a step, which has only one"):
        plan(cluster=LOCAL, mode={"kind": "async"}, train={"batch_size": 2} | pairs)


DLRM = {"kind": "dlrm", "dim": 8, "bottom": [4], "top": [4]}
DIN = {"kind": "din", "dim": 8, "attention": [4], "hidden": [4]}
DEEPFM = {"kind": "deepfm", "dim": 8, "hidden": [4]}
FINAL = {"kind": "finalmlp", "dim": 8, "first": [4], "second": [4], "heads": 1}
SEQUENCE = {"name": "last", "pooling": "none", "max_length": 5}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": DLRM, "dataset": {"dense": []}}, "model.kind=dlrm has a part for .* the data set has no dense ones"),
        ({"sparse": ["a", SEQUENCE]}, "model.kind=ffnn takes one vector per feature, but pooling is none for last"),
        ({"sparse": [], "model": DEEPFM}, "model.kind=deepfm works on embeddings, but .* no sparse features"),
        ({"sparse": ["item", SEQUENCE], "model": DIN | {"attend": {"item": ["last"]}}}, "attend.item: last does not"),
        ({"sparse": ["a", SEQUENCE], "model": DIN | {"attend": {"a": ["lats"]}}}, "model.attend.a=lats: .* mean last?"),
        ({"model": FINAL | {"gate": {"hidden": [4], "first": ["c"]}}}, "model.gate.first=c: needs a sparse feature"),
        ({"model": DEEPFM, "embedding": {"tables": {"a": {"dim": 4}}}}, r"rows of model.dim=8 .* a \(4\)"),
        ({"mode": {"kind": "async"}, "train": {"batch_size": 32, "device": "cuda"}}, "train.device=cuda: with mode"),
        ({"embedding": {"capacity": 2 * MAX_ROWS}}, "on one embedding server, and 4,294,967,294 are"),
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


SASREC = {"kind": "sasrec", "dim": 8, "attend": {"item": ["last"]}, "layers": 1, "heads": 1}
LAST = {"name": "last", "table": "item", "pooling": "none", "max_length": 5}
SAMPLED = {"batch_size": 32, "losses": {"click": {"kind": "sampled_softmax"}}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": FFNN}, "predicts the next elements of sequences, and model.kind=ffnn has no states of them; use"),
        ({"dataset": {"labels": ["click", "count"]}}, "^model.kind=sasrec gives one score .* has 2 labels"),
        ({"sparse": ["item", LAST | {"table": "other"}]}, "^model.attend.item: last does not read the table of item"),
        ({"sparse": [{"name": "item", "separator": "|"}, LAST]}, "needs exactly one id of item in each sample; give"),
        ({"sparse": [{"name": "item", "missing_id": "none"}, LAST]}, "without separator, padding or missing_id: none"),
        (
            {"embedding": {"tables": {"item": {"hash_stack": {"rounds": 2, "size": 50}}}}},
            "items by their rows, and embedding.tables.item.hash_stack gives several to each; leave hash_stack out",
        ),
        (
            {"sparse": ["item", LAST | {"name": "negatives"}], "model": SASREC | {"attend": {"item": ["negatives"]}}},
            "^dataset.sparse: negatives is the name of the items that train.losses: kind=sampled_softmax draws; give",
        ),
        ({"train": SAMPLED | {"compile": True}}, "lengths in each step, .* set train.compile=false"),
        ({"model": SASREC | {"embedding_dropout": 0.1}}, "embedding_dropout out, and raise model.dropout$"),
    ],
    ids=["network", "labels", "tables", "lists", "nulls", "stack", "name", "compile", "dropout"],
)
def test_next_items_need_a_sequence_and_one_item_of_one_table_with_a_row_each(
    changes: dict[str, Any], sentence: str
) -> None:
    given = {"sparse": ["item", LAST], "model": SASREC, "train": SAMPLED} | changes
    given["dataset"] = {"dense": []} | changes.get("dataset", {})
    if given["model"] is FFNN:
        given["sparse"] = ["item"]
    with pytest.raises(ConfigError, match=sentence):
        plan(**given)


SEEN = {"name": "seen.item", "table": "item", "pooling": "none"}
WINDOWS = {
    "histories": {"seen": {"user": "user", "time": "time", "columns": ["item"], "max_length": 4}},
    "samples": {"kind": "windows", "of": "seen"},
    "dense": [],
}


@pytest.mark.parametrize(
    ("loss", "sparse", "sentence"),
    [
        ({"kind": "bce"}, ["item", SEEN], "^dataset.samples: of the events of a window only the newest would train"),
        ({"kind": "sampled_softmax", "positions": "last"}, ["item", SEEN], "of a window only the newest would train"),
        (
            {"kind": "sampled_softmax"},
            ["item", SEEN | {"max_length": 2}],
            "^dataset.sparse: seen.item has max_length: 2, and windows have 4 events; leave it out, or set",
        ),
        (
            {"kind": "sampled_softmax"},
            ["item", LAST | {"name": "seen.item", "column": "last"}, SEEN | {"name": "other", "column": "seen.item"}],
            "^dataset.samples: windows are of history seen, and model.attend names seen.item; name one of both",
        ),
        ({"kind": "sampled_softmax"}, ["item", SEEN], None),
    ],
    ids=["bce", "last", "length", "history", "right"],
)  # fmt: skip
def test_all_events_of_windows_train(loss: dict[str, Any], sparse: list[Any], sentence: str | None) -> None:
    given = {
        "sparse": sparse,
        "dataset": WINDOWS,
        "model": SASREC | {"attend": {"item": ["seen.item"]}},
        "train": {"batch_size": 32, "losses": {"click": loss}},
    }
    with nullcontext() if sentence is None else pytest.raises(ConfigError, match=sentence):
        plan(**given)
