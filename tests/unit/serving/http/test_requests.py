"""Requests are read by the layouts of earlier ones, with the same result, and served one at a time."""

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from persia_cli.serving.description import ModelInput, ModelOutput
from persia_cli.serving.http import requests
from persia_cli.serving.http.app import Turns
from persia_cli.serving.http.refused import RefusedRequestError
from persia_cli.serving.http.requests import RequestReader
from tests.support.asgi import binary, tensor

INPUTS = [ModelInput("user", "UINT64", (-1,)), ModelInput("price", "FP32", (-1,))]
OUTPUTS = [ModelOutput("click_probability", "click", "logistic")]


def asked(reader: RequestReader, users: list[int], prices: list[float], **more: Any) -> requests.PredictionRequest:
    inputs = [tensor("user", "UINT64", users), tensor("price", "FP32", prices)]
    body, headers = binary(inputs, **more)
    return reader.infer(body, headers["inference-header-content-length"].encode())


def test_the_second_request_of_a_form_has_its_own_values() -> None:
    reader = RequestReader(INPUTS, OUTPUTS, most_samples=10)
    for users, prices in (([1], [0.5, 1.5, 2.5]), ([2**63 + 5], [-1.0, 0.25, 8.0]), ([3], [9.0]), ([4], [0.125])):
        for more in ({}, {"parameters": {"binary_data_output": True}}, {"id": "7"}):
            for _ in range(2):
                found = asked(reader, users, prices, **more)
                assert found.columns["user"].tolist() == users
                assert found.columns["price"].tolist() == prices
                assert (found.columns["user"].dtype, found.columns["price"].dtype) == (np.uint64, np.float32)
                assert all(column.flags.aligned and column.flags.writeable for column in found.columns.values())
                assert found.id == more.get("id")
                assert [each.is_binary for each in found.outputs] == ["parameters" in more]


TWO_LISTS = [ModelInput("seen", "UINT64", (-1, -1)), ModelInput("tags", "UINT64", (-1, -1)), INPUTS[0]]


def test_ids_of_all_lists_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each becomes a vector: lists that stand for all samples would make gigabytes of a small body."""
    monkeypatch.setattr(requests, "MAX_IDS", 30)
    reader = RequestReader(TWO_LISTS, OUTPUTS, most_samples=100)
    users = tensor("user", "UINT64", [1] * 5)

    def ask(seen: int, tags: int) -> None:
        lists = [tensor("seen", "UINT64", [1] * seen, [1, seen]), tensor("tags", "UINT64", [1] * tags, [1, tags])]
        reader.infer(json.dumps({"inputs": [*lists, users]}).encode(), None)

    ask(3, 3)
    for seen, tags in ((3, 4), (1, 6)):
        with pytest.raises(RefusedRequestError, match="the request has 35 ids in the lists of all samples, and 30 are"):
            ask(seen, tags)

    def rows(tags: int) -> None:
        first, second = {"seen": [1] * 10, "tags": [2] * tags, "user": 1}, {"seen": [3] * 14, "tags": None, "user": 2}
        reader.rows(json.dumps({"instances": [first, second]}).encode())

    rows(6)
    with pytest.raises(RefusedRequestError, match="the request has 31 ids in the lists"):
        rows(7)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (tensor("seen", "UINT64", [[], [], []], [2, 0]), "has other rows than its shape"),
        (tensor("seen", "UINT64", [[1, 2], [3]], [2, 2]), "has other rows than its shape"),
        (tensor("seen.lengths", "INT32", [0, 0, 0, 0], [2, 2]), "one length for each sample, and the shape"),
    ],
)
def test_values_of_another_shape_than_declared_are_refused(given: dict[str, Any], says: str) -> None:
    reader = RequestReader(TWO_LISTS, OUTPUTS, most_samples=10)
    inputs = [given] if given["name"] == "seen" else [tensor("seen", "UINT64", [], [0]), given]
    with pytest.raises(RefusedRequestError, match=says):
        reader.infer(json.dumps({"inputs": inputs}).encode(), None)


SOON_S = 10.0


def run(what: Coroutine[Any, Any, None]) -> None:
    """Run it on a separate loop, with a time limit."""
    asyncio.run(asyncio.wait_for(what, SOON_S))


def test_the_turn_of_a_disconnected_client_goes_to_the_next() -> None:
    seen: list[str] = []

    async def some_leave() -> None:
        turns = Turns(9)
        until = time.monotonic() + SOON_S
        tasks = {name: asyncio.create_task(turns.turn(until, lambda name=name: seen.append(name))) for name in "abcd"}

        def leave() -> None:
            tasks["c"].cancel()  # while it waits
            loop.call_soon(tasks["b"].cancel)  # after the call that gives it the turn

        loop = asyncio.get_running_loop()
        loop.call_soon(leave)
        found = await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert [type(each) for each in found] == [
            type(None), asyncio.CancelledError, asyncio.CancelledError, type(None),
        ]  # fmt: skip
        await turns.turn(until, lambda: seen.append("later"))

    run(some_leave())
    assert seen == ["a", "d", "later"]


def test_failed_or_late_work_releases_its_turn() -> None:
    seen: list[str] = []

    async def failing() -> None:
        turns = Turns(9)
        until = time.monotonic() + SOON_S
        found = await asyncio.gather(
            turns.turn(until, lambda: 1 / 0), turns.turn(until, lambda: 1 / 0),
            turns.turn(-1.0, lambda: 3),
            turns.turn(until, lambda: seen.append("last")), return_exceptions=True,
        )  # fmt: skip
        assert [type(each) for each in found[:3]] == [ZeroDivisionError, ZeroDivisionError, RefusedRequestError]

    run(failing())
    assert seen == ["last"]
