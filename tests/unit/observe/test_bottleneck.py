"""The rates of replicas between two moments, and the bottleneck that they show."""

from typing import Any

import pytest

from persia_cli.observe.live_state import LiveState, ReplicaRates, bottleneck, rates_of
from tests.support.runs import make_run

HERE = "h1 7"
ROLES = ("coordinator", "data-loader", "embedding-worker", "embedding-server", "nn-worker")


def moment(**used: Any) -> LiveState:
    entry = {"role": "data-loader", "index": 0, "host": "h1", "pid": 7, "doing": "", "rss": 100, "queue": 2}
    return LiveState(1.0, "training", 4, 0.0, [entry | used], {})


def test_rates_are_those_between_two_moments_by_the_clock_of_the_replica() -> None:
    before = moment(ran_s=10.0, cpu_s=4.0, waited_s=8.0, exchanged={"messages": 10, "wire": 100, "shared": 50})
    after = moment(ran_s=12.0, cpu_s=5.0, waited_s=8.5, exchanged={"messages": 30, "wire": 200, "shared": 150})
    assert rates_of(before, after, False) == [
        ReplicaRates("data-loader-0", "data-loader", HERE, 0.5, 100, 2, 10.0, 100.0, 0.25, "", 0.0)
    ]
    [part] = rates_of(before, after, True)
    assert (part.cpu, part.rss, part.messages) == (None, None, 10.0)


def test_a_new_process_counts_from_its_start() -> None:
    before, after = moment(ran_s=100.0, cpu_s=90.0, waited_s=9.0), moment(ran_s=2.0, cpu_s=1.0, waited_s=1.0)
    for first in (before, None):
        [rates] = rates_of(first, after, False)
        assert (rates.cpu, rates.waits, rates.messages) == (0.5, 0.5, None)


def rates(cpu: float, **waits: float) -> list[ReplicaRates]:
    """Return one replica of each role: with these waits, each with so many cores."""
    found = {role: waits.get(role.replace("-", "_"), 0.8) for role in ROLES}
    return [ReplicaRates(f"{role}-0", role, HERE, cpu, 1, 0, 1.0, 1.0, wait, "", 0.0) for role, wait in found.items()]


@pytest.mark.parametrize(
    ("seen", "load", "on_gpu", "parts"),
    [
        (rates(0.75, nn_worker=0.0), 1.0, False, ["4 cores of h1", "nn-worker 0.8"]),
        (rates(0.1, nn_worker=0.0), 1.5, False, ["Other programs", "0.5"]),
        (rates(0.1, nn_worker=0.0), 0.5, False, ["NN workers", "train.threads=4"]),
        (rates(0.1, nn_worker=0.0), 1.5, True, ["NN workers", "cluster.nn_workers=2"]),
        (rates(0.1, data_loader=0.1), 0.5, False, ["data loaders", "cluster.data_loaders=2"]),
        (rates(0.1, embedding_server=0.1), 0.5, False, ["embedding servers", "cluster.embedding_servers=2"]),
        (rates(0.1), 0.5, False, ["Round trips", "mode=hybrid"]),
        ([], 0.5, False, []),
    ],
)
def test_the_bottleneck_is_named_with_what_helps(
    seen: list[ReplicaRates], load: float, on_gpu: bool, parts: list[str]
) -> None:
    sentence = bottleneck(make_run(), seen, LiveState(1.0, "training", 4, load, [], {}), on_gpu)
    assert all(part in sentence for part in parts)
    assert bool(sentence) == bool(parts)
