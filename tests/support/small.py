"""A job that is over in seconds, for tests that disturb it, and what its replicas counted."""

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
    """What each replica of a role used and counted."""
    roles = next(event for event in result.events if event["event"] == "roles")["roles"]
    return [entry for entry in roles if entry["role"] == role]


def counted(result: JobResult, role: str, counter: str) -> int:
    """How often something was not as it should be on the wire of a role, all its replicas together."""
    return sum(replica["messages"][counter] for replica in replicas(result, role))


def figures(result: JobResult, ranks: int = 1) -> list[dict[str, Any]]:
    """The lines of metrics without what depends on the moment.

    An id that is new to two ranks in one step had no row for the one that asked first, as often as it came to that one.
    """
    of_the_moment = ("time", "samples_per_s", *(["look_up_hit_rate"] if ranks > 1 else []))
    return [{key: line[key] for key in line if key not in of_the_moment} for line in result.metrics]
