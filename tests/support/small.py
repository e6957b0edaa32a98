"""A job that is over in seconds, for tests that disturb it, and the counters of its replicas."""

from typing import Any

from persia_cli.engines.job import JobResult

STEPS = 300
WORDS = [
    "conf=synthetic",
    "mode=sync",
    "model.hidden=[8]",
    "model.dim=4",
    f"dataset.generator.train_rows={32 * STEPS}",
    "dataset.generator.eval_rows=320",
    "dataset.generator.dense=2",
    "dataset.generator.cardinalities=[20, 300]",
    "train.batch_size=32",
    "train.log_every_steps=1",
    "embedding.capacity=4096",
    "embedding.num_partitions=64",
    "cluster.retry_s=0.05",
]


def replicas(result: JobResult, role: str) -> list[dict[str, Any]]:
    """Return the usage and counters of each replica of a role."""
    roles = next(event for event in result.events if event["event"] == "roles")["roles"]
    return [entry for entry in roles if entry["role"] == role]


def counted(result: JobResult, role: str, counter: str) -> int:
    """Return a counter of faults on the wire of a role, summed over its replicas."""
    return sum(replica["messages"][counter] for replica in replicas(result, role))


def figures(result: JobResult, ranks: int = 1) -> list[dict[str, Any]]:
    """Return the lines of metrics without times.

    For an id that is new to two ranks in one step, the rank that requested it first counts each of its entries as new.
    """
    of_the_moment = ("time", "samples_per_s", *(["look_up_hit_rate"] if ranks > 1 else []))
    return [{key: line[key] for key in line if key not in of_the_moment} for line in result.metrics]
