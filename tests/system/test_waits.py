"""The time in which a process has nothing to do, by which users find the slowest one."""

from pathlib import Path

from persia_cli.observe.journal import EVENTS, read_journal
from tests.support.jobs import train


def test_a_loader_that_reads_does_not_wait(tmp_path: Path) -> None:
    """Samples of many numbers take long to be generated, so that the NN worker waits for them."""
    words = [
        "conf=synthetic",
        "cluster=local",
        "model.hidden=[8]",
        "model.dim=4",
        f"dataset.generator.train_rows={100 * 256}",
        "dataset.generator.eval_rows=32",
        "dataset.generator.dense=4000",
        "dataset.generator.cardinalities=[100]",
        "train.batch_size=256",
        "cluster.data_loaders=1",
    ]
    train(words, tmp_path / "run")
    [roles] = [event["roles"] for event in read_journal(tmp_path / "run" / EVENTS) if event["event"] == "roles"]
    waited = {role["role"]: role["waited_s"] for role in roles}
    assert waited["data-loader"] < waited["nn-worker"]
