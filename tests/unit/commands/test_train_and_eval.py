"""`persia train` and `persia eval` from end to end, in this process."""

import json
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
    assert told[-2:] == ["metrics   run/metrics.jsonl", "next      persia eval run"]
    steps = [line for line in told if line.startswith("training  step ")]
    assert [line.split()[2] for line in steps] == ["2/6", "4/6", "6/6"]
    assert all(word in steps[0] for word in ("loss ", "AUC ", "samples/s", "eta "))
    assert told.count(f"saved     {Path.cwd()}/run/checkpoints/step-6") == 1

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


def test_a_stand_in_is_named_at_the_start_and_with_the_result_and_nowhere_else(persia) -> None:
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
