"""What the coordinator finds about the machines of the replicas that have joined."""

import socket
from typing import Any, cast

from persia_cli.config.compose import compose_run
from persia_cli.control.membership import Membership
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.wire.parts import ProcessId
from persia_cli.wire.place import own_place


def test_pins_of_each_machine_are_compared_by_themselves() -> None:
    words = [
        "conf=synthetic",
        "cluster=local",
        "cluster.nn_workers=3",
        "train.batch_size=3",
        "cluster.pin={coordinator: 0, nn_worker: 0}",
    ]
    membership = Membership({"nn-worker": 3})
    nothing = cast(Any, None)
    joining = JoinHandler(nothing, compose_run(words), nothing, membership, lambda: 0.0, nothing)
    places = (own_place(), "", "")
    for rank, (place, host) in enumerate(zip(places, (socket.gethostname(), "far", "far"), strict=True)):
        membership.join("nn-worker", rank, ProcessId(7, 5, place), host, "", 0.0)
        found = [each.partition(", and wait")[0] for each in joining.shared_processors()]
        expected = [f"coordinator-0, nn-worker-0 share processors 0 of {socket.gethostname()}"]
        assert found == expected + ["nn-worker-1, nn-worker-2 share processors 0 of far"] * (rank == 2)
