"""Requests are served one at a time in the order of arrival, and none blocks the next."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from persia_cli.serving.http.refused import RefusedRequestError
from persia_cli.serving.http.turns import Turns

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
