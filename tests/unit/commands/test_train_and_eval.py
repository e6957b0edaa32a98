"""`persia train` and `persia eval` from end to end, in this process."""

import json
import re
from pathlib import Path

SMALL = ("dataset=tiny", "cluster=embedded", "mode=sync", "model.hidden=[4]", "model.dim=4", "train.batch_size=100")
QUALITY = ("auc", "log_loss", "ne", "calibration")


def figures(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split())


def test_train_then_eval_then_refuse_a_second_run(persia) -> None:
    trained = persia("train", *SMALL, "train.log_every_steps=2", "--run-dir", "run")
    assert trained.code == 0, trained.err
    told = trained.err.splitlines()
    assert told[0] == "run       base in run"
    assert told[-3:] == [
        f"saved     {Path.cwd()}/run/checkpoints/step-6",
        "metrics   run/metrics.jsonl",
        "next      persia eval run",
    ]
    events = [figures(line) for line in told if re.match(r"event=(metrics|phase|saved) ", line)]
    training = [line for line in events if line.get("split") == "train"]
    assert [line["step"] for line in training] == ["2", "4", "6"]
    assert {"samples", "loss", "auc", "samples_per_s", "staleness_mean", "rows", "eta_s"} <= set(training[0])
    assert events[-1]["phase"] == "done"

    result = figures(trained.out)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    recorded = next(line for line in reversed(lines) if line["split"] == "eval")
    assert {key: result[key] for key in QUALITY} == {key: json.dumps(recorded[key]) for key in QUALITY}

    for words in (("run",), ("run", "cluster.embedding_servers=3"), ("run/checkpoints/step-6",)):
        evaluated = persia("eval", *words)
        assert evaluated.code == 0, evaluated.err
        assert {key: figures(evaluated.out)[key] for key in QUALITY} == {key: result[key] for key in QUALITY}
    assert len(list(Path("run/evals").iterdir())) == 3

    again = persia("train", *SMALL, "--run-dir", "run")
    assert (again.code, again.out) == (2, "")
    assert again.err == "error: run already contains a run; choose another --run-dir or remove it\n"
