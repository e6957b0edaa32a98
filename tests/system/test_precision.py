"""A job in bfloat16, from end to end."""

from pathlib import Path

import pytest

from tests.support.jobs import evaluation, losses, train
from tests.support.small import WORDS

JOB = [*WORDS, "cluster=embedded", "dataset.generator.train_rows=1280"]


def test_a_job_in_bfloat16_learns_what_one_in_float32_does(tmp_path: Path) -> None:
    exact = train(JOB, tmp_path / "exact")
    half = train([*JOB, "train.precision=bfloat16"], tmp_path / "half")
    # Sums of a few dozen products, each rounded once: a few roundings of 2^-9 or less.
    assert losses(half) == pytest.approx(losses(exact), rel=2.0**-6)
    assert losses(half) != losses(exact)
    assert evaluation(half)["auc"] == pytest.approx(evaluation(exact)["auc"], abs=0.01)
