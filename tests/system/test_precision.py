"""Jobs in half types and with a compiled network, from end to end."""

import json
from pathlib import Path

import pytest
import safetensors

from persia_cli.training.dense_state import OPTIMIZER
from persia_cli.training.precision import FIRST
from tests.support.jobs import evaluation, losses, train
from tests.support.small import WORDS

JOB = [*WORDS, "cluster=embedded", "dataset.generator.train_rows=1280"]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_job_in_a_half_type_learns_what_one_in_float32_does(precision: str, tmp_path: Path) -> None:
    exact = train(JOB, tmp_path / "exact")
    half = train([*JOB, f"train.precision={precision}"], tmp_path / "half")
    # Sums of a few dozen products, each rounded once: a few roundings of 2^-9 or less.
    assert losses(half) == pytest.approx(losses(exact), rel=2.0**-6)
    assert losses(half) != losses(exact)
    assert evaluation(half)["auc"] == pytest.approx(evaluation(exact)["auc"], abs=0.01)


def test_the_loss_scale_is_on_the_record_and_in_the_checkpoint(tmp_path: Path) -> None:
    result = train([*JOB, "train.precision=float16"], tmp_path / "run")
    lines = [line for line in result.metrics if line["split"] == "train"]
    assert {(line["loss_scale"], line["steps_skipped"]) for line in lines} == {(FIRST, 0)}
    assert not any("loss_scale" in line for line in result.metrics if line["split"] == "eval")
    (file,) = (tmp_path / "run").glob(f"checkpoints/*/dense/{OPTIMIZER}")
    with safetensors.safe_open(file, framework="numpy") as opened:
        record = json.loads(opened.metadata()["persia"])
    assert record["loss_scale"] == {"scale": FIRST, "skipped": 0, "good": len(lines)}
