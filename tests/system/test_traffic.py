"""Numbers of bytes that the roles of a job report as exchanged, against those that the job has to send."""

import re
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from tests.support.jobs import train
from tests.support.launched import Launched
from tests.support.small import WORDS

STEPS, BATCH, DIM = 40, 64, 32
JOB = [*WORDS, f"model.dim={DIM}", f"train.batch_size={BATCH}", "checkpoint.at_end=false"]
SIZE = [f"dataset.generator.train_rows={STEPS * BATCH}", f"dataset.generator.eval_rows={BATCH}"]
SIZE += ["dataset.generator.cardinalities=[1000000, 1000000]", "embedding.capacity=16384"]
FEATURES = 2


def exchanged(result: JobResult, role: str, peer: str) -> tuple[int, int]:
    """Bytes of messages between two roles, and of arrays in shared memory."""
    [event] = [event for event in result.events if event["event"] == "roles"]
    both = [entry["links"][peer] for entry in event["roles"] if entry["role"] == role]
    return sum(each["wire"] for each in both), sum(each["shared"] for each in both)


@pytest.mark.processes
@pytest.mark.slow
def test_half_types_on_the_wire_halve_the_bytes_and_shared_memory_takes_them_off_it(tmp_path: Path) -> None:
    words = [*JOB, *SIZE, "cluster=local"]
    apart = train([*words, "cluster.shared_memory=false"], tmp_path / "apart")
    halves = train([*words, "cluster.shared_memory=false", "embedding.wire=float16"], tmp_path / "halves")
    with Launched([*words, "cluster.shared_memory=true"], tmp_path / "together") as launched:
        assert launched.end(120.0)[0] == 0, launched.output
    together = result_of(launched.run_dir)
    assert re.search(
        r"wire .*nn-worker - embedding-worker \d+(\.\d)? (Ki)?B \(\d\d% in shared memory\)", launched.output
    )
    assert "per sample" in launched.output
    for role, peer in (("nn-worker", "embedding-worker"), ("embedding-worker", "embedding-server")):
        whole, shared = exchanged(apart, role, peer)
        assert shared == 0
        half, _ = exchanged(halves, role, peer)
        # Ids, offsets and headers do not change.
        assert 0.5 < half / whole < 0.62, (role, whole, half)
        wire, shared = exchanged(together, role, peer)
        assert wire < whole / 4, (role, wire, whole)
        assert wire + shared == pytest.approx(whole, rel=0.05)
    # A vector of nearly each id goes to the NN worker, and its gradient back, and little else.
    vectors = 2 * STEPS * BATCH * FEATURES * DIM * 4
    assert exchanged(apart, "nn-worker", "embedding-worker")[0] == pytest.approx(vectors, rel=0.15)
    # Samples with one id of each feature: a data loader sends ids and headers, and no offsets.
    ids = (STEPS + 1) * BATCH * FEATURES * 8
    assert 1.0 < exchanged(apart, "data-loader", "embedding-worker")[0] / ids < 1.3
