"""`persia train` and `persia eval` from end to end, in this process, with a trace and with weights."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.errors import UserError
from persia_cli.jobs.trace import trace_window
from tests.support.traced import read_trace

SMALL = ("dataset=tiny", "cluster=embedded", "mode=sync", "model.hidden=[4]", "model.dim=4", "train.batch_size=100")
QUALITY = ("auc", "log_loss", "ne", "calibration")


def shown(output: str) -> list[str]:
    """Return the numbers of a printed evaluation: AUC, PR-AUC, accuracy, log loss, NE and calibration."""
    return re.findall(r"\d\.\d{6}", output.splitlines()[-1])


def test_train_then_eval_then_refuse_a_second_run(persia) -> None:
    trained = persia("train", *SMALL, "train.log_every_steps=2", "--run-dir", "run")
    assert trained.code == 0, trained.err
    told = trained.err.splitlines()
    assert told[0] == "run       base in run"
    assert told[-2:] == ["metrics   run/metrics.jsonl", "next      persia eval run"]
    steps = [line for line in told if line.startswith("training  step ")]
    assert [line.split()[2] for line in steps] == ["2/6", "4/6", "6/6"]
    assert all(word in steps[0] for word in ("loss ", "AUC ", "samples/s", " left"))
    assert told.count("saved     run/checkpoints/step-6") == 1

    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    recorded = next(line for line in reversed(lines) if line["split"] == "eval")
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    recorded |= next((event["metrics"] for event in events if event["event"] == "calibrated"), {})
    result = [f"{recorded[key]:.6f}" for key in ("auc", "pr_auc", "accuracy", *QUALITY[1:])]
    assert shown(trained.out) == result

    as_json = json.loads(persia("eval", "run", "--json").out)
    assert {key: as_json[key] for key in QUALITY} == pytest.approx({key: recorded[key] for key in QUALITY}, rel=1e-12)

    for words in (("run",), ("run", "cluster.embedding_servers=3"), ("run/checkpoints/step-6",)):
        evaluated = persia("eval", *words)
        assert evaluated.code == 0, evaluated.err
        assert shown(evaluated.out) == result
    assert len(list(Path("run/evals").iterdir())) == 4

    again = persia("train", *SMALL, "--run-dir", "run")
    assert (again.code, again.out) == (2, "")
    assert again.err == "error: run already contains a run; choose another --run-dir or remove it\n"


def test_a_stand_in_is_named_at_the_start_and_with_the_result(persia) -> None:
    rows = ("dataset.generator.train_rows=256", "dataset.generator.eval_rows=64", "embedding.memory=64MiB")
    words = ("conf=criteo", *rows, *SMALL[1:-1], "model=ffnn", "train.batch_size=64", "train.epochs=1")
    ended = persia("train", *words, "checkpoint.at_end=false", "--run-dir", "run")
    assert ended.code == 0, ended.err
    said = ended.err.splitlines()
    at = [number for number, line in enumerate(said) if "made-up" in line]
    assert at[0] == 1
    assert said[at[1] - 1].startswith("evaluated step 4 ")
    assert len(at) == 2
    assert {said[number].partition("real ones: ")[2] for number in at} == {
        "persia recipe prepare criteo --input SOURCE --output data/criteo"
    }
    assert "made" not in ended.out


def test_the_command_prints_where_the_trace_is(persia) -> None:
    trained = persia("train", *SMALL, "--run-dir", "run", "--trace", "steps.json", "--trace-steps", "2:5")
    assert trained.code == 0, trained.err
    said = trained.err.splitlines()[-1]
    assert said.startswith("trace     steps.json: steps 2 to 4, ")
    assert said.endswith(" spans; open it at https://ui.perfetto.dev")
    assert {span.step for span in read_trace(Path("steps.json"))} == {2, 3, 4}
    assert not Path("run/trace").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--trace", "no/such/steps.json"], "--trace=no/such/steps.json: this is not a file in a folder that exists"),
        (["--trace", "a.json", "--trace-steps", "6:9"], "--trace-steps=6:9: the training has the steps 0 to 5 only"),
        (["--trace-steps", "0:5"], "--trace-steps selects the steps that --trace FILE traces; give --trace too"),
    ],
)
def test_what_cannot_be_traced_is_refused_before_anything_starts(persia, options: list[str], sentence: str) -> None:
    refused = persia("train", *SMALL, "--run-dir", "run", *options)
    assert (refused.code, refused.out, refused.err) == (2, "", f"error: {sentence}\n")
    assert not Path("run").exists()


def test_the_window() -> None:
    assert [trace_window(None, steps) for steps in (1000, 150, 5)] == [(20, 220), (15, 150), (0, 5)]
    assert [trace_window(words, 1000) for words in ("0:10", "900:5000")] == [(0, 10), (900, 1000)]


@pytest.mark.parametrize("words", ["", "5", "5:5", "-1:3", "a:b", "1:2:3"])
def test_words_that_are_no_steps(words: str) -> None:
    with pytest.raises(UserError, match="FIRST:LAST"):
        trace_window(words, 1000)


ROWS = 600
WEIGHTED = (
    "dataset=parquet", "dataset.path=rows.parquet", "dataset.labels=[y]", "dataset.sparse=[user]",
    "dataset.weight=importance", "dataset.split={kind: every, n: 3}", "cluster=embedded", "mode=sync",
    "model.hidden=[4]", "model.dim=4", "train.batch_size=100", "train.log_every_steps=2", "--run-dir", "run",
)  # fmt: skip
EVALUATES = np.arange(ROWS) % 3 == 0


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.zeros(ROWS), "all 400 training samples weigh 0 in column importance, which dataset.weight names"),
        (np.where(EVALUATES, 0.0, 1.0), "all 200 evaluation samples weigh 0 in column importance"),
    ],
    ids=["training", "evaluation"],
)
def test_samples_without_weight_are_an_error(persia, weights: np.ndarray, sentence: str) -> None:
    columns = {"y": np.arange(ROWS) % 2 * 1.0, "user": np.arange(ROWS) % 50, "importance": weights.astype(np.float32)}
    pq.write_table(pa.table(columns), "rows.parquet")
    ended = persia("train", *WEIGHTED)
    assert (ended.code, Path("run").exists()) == (2, False)
    assert sentence in ended.err.splitlines()[-1]
