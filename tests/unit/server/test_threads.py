"""Threads take requests from one line: several at once, in order, with the bits of one predictor."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from persia_cli.server.app import ServingApp
from persia_cli.server.refused import RefusedRequestError
from persia_cli.server.settings import ServerSettings
from persia_cli.server.threads import ThreadTurns
from persia_cli.server.worker import _Server
from persia_cli.serving.predictor import Predictor
from tests.conftest import poll_for
from tests.support.asgi import ask, asked, binary, outputs_of, tensor
from tests.support.small_model import ITEMS, USERS, WORDS, write_small_model

SOON_S = 10.0
INFER = "/v2/models/shop/infer"


@pytest.fixture
def turns() -> Iterator[ThreadTurns[str]]:
    found = ThreadTurns(9, ["first", "second"])
    yield found
    found.close()


def run(what: Coroutine[Any, Any, None]) -> None:
    """Run it on a loop of its own, within a time."""
    asyncio.run(asyncio.wait_for(what, SOON_S))


def in_time() -> float:
    return time.monotonic() + SOON_S


def test_as_many_are_done_at_once_as_there_are_threads(turns: ThreadTurns[str]) -> None:
    meeting = threading.Barrier(2)

    def meet(tool: str) -> str:
        meeting.wait(SOON_S)  # breaks unless two are at work
        return tool

    async def two() -> None:
        found = await asyncio.gather(*(turns.turn(in_time(), meet) for _ in range(2)))
        assert sorted(found) == ["first", "second"]

    run(two())


def test_what_waits_is_begun_in_order_and_delivered_on_the_event_loop() -> None:
    turns, begun = ThreadTurns(9, [None]), []
    delivered: list[tuple[int, bool]] = []
    own = threading.get_ident()
    wanted = {number: number != 2 for number in range(5)}

    async def several() -> None:
        for number in range(5):
            turns.do(
                lambda number=number: wanted[number],
                lambda tool, number=number: begun.append(number) or number,
                lambda result: delivered.append((result, threading.get_ident() == own)),
            )  # fmt: skip
        while len(delivered) < 4:
            await asyncio.sleep(0.001)

    run(several())
    turns.close()
    assert begun == [0, 1, 3, 4]  # one has left
    assert delivered == [(number, True) for number in begun]


def test_one_who_leaves_during_the_work_gets_nothing_and_holds_no_place(turns: ThreadTurns[str]) -> None:
    turns._most = 1
    is_there, delivered = [True], []

    def leave(tool: str) -> str:
        is_there[0] = False
        return tool

    async def one() -> None:
        turns.do(lambda: is_there[0], leave, delivered.append)
        assert turns.is_full
        while turns.is_full:
            await asyncio.sleep(0.001)

    run(one())
    assert delivered == []


def test_work_that_fails_or_comes_too_late_ends_no_thread(turns: ThreadTurns[str]) -> None:
    async def failing() -> None:
        found = await asyncio.gather(
            *(turns.turn(in_time(), lambda tool: 1 / 0) for _ in range(4)), turns.turn(-1.0, lambda tool: 3),
            return_exceptions=True,
        )  # fmt: skip
        assert [type(each) for each in found] == [ZeroDivisionError] * 4 + [RefusedRequestError]
        assert await turns.turn(in_time(), lambda tool: 7) == 7

    run(failing())


def test_one_whose_task_ends_while_it_waits_is_not_computed(turns: ThreadTurns[str]) -> None:
    go_on, computed = threading.Event(), []

    async def leaving() -> None:
        held = [asyncio.create_task(turns.turn(in_time(), lambda tool: go_on.wait(SOON_S))) for _ in range(2)]
        leaver = asyncio.create_task(turns.turn(in_time(), computed.append))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*held) == [True, True]
        await turns.turn(in_time(), lambda tool: None)

    run(leaving())
    assert computed == []


def test_a_worker_whose_computation_is_stuck_falls_silent(turns: ThreadTurns[str], monkeypatch: Any) -> None:
    """Its event loop goes round, and the parent has to hear that it does not answer."""
    go_on, told = threading.Event(), Mock()
    monkeypatch.setattr("persia_cli.server.worker.os.write", told)
    server = Mock(_app=Mock(stuck_s=turns.stuck_s), _token=None, _news=1)

    async def stuck() -> None:
        task = asyncio.create_task(turns.turn(in_time(), lambda tool: go_on.wait(SOON_S)))
        await asyncio.sleep(0)
        monkeypatch.setattr("persia_cli.server.worker.PULSE_S", 0.05)
        poll_for(lambda: turns.stuck_s() > 0.05, SOON_S, "work that goes on for a while")
        _Server._pulse(server)
        assert not told.called
        go_on.set()
        await task
        _Server._pulse(server)
        assert told.called

    run(stuck())


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.open(write_small_model(tmp_path_factory.mktemp("serve") / "shop"))


def columns(seed: int) -> dict[str, Any]:
    """Samples of all kinds of ids, also of such without rows."""
    draw = np.random.default_rng(seed)
    words = [draw.choice([*WORDS, "desk"], draw.integers(0, 4)).tolist() for _ in range(300)]
    users, items = (draw.choice(np.array([*each, 99], np.uint64), 300) for each in (USERS, ITEMS))
    return {"user": users, "item": items, "words": words, "price": draw.random(300, np.float32)}


def test_predictors_of_several_threads_have_the_bits_of_one(predictor: Predictor) -> None:
    batches = [predictor.fields.batch(columns(seed)) for seed in range(8)]
    right = [predictor.predict(batch).values.tobytes() for batch in batches]

    def differ(own: Predictor) -> int:
        pairs = list(zip(batches, right, strict=True)) * 100
        return sum(own.predict(batch).values.tobytes() != one for batch, one in pairs)

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(differ, [predictor.for_another_thread() for _ in range(4)])) == 0


def test_what_ids_without_a_row_give_is_each_predictors_own(predictor: Predictor) -> None:
    other, batch = predictor.for_another_thread(), predictor.fields.batch(columns(1))
    before = predictor.predict(batch).values.tobytes()
    for group in other._groups:
        group.let_missing_be("init")
    assert other.predict(batch).values.tobytes() != before
    assert predictor.predict(batch).values.tobytes() == before


def test_an_application_with_threads_gives_the_bits_of_this_process(predictor: Predictor, tmp_path: Path) -> None:
    app = ServingApp(predictor, ServerSettings(str(predictor.folder), threads=3))
    users = [USERS, [1], [2, 99]]
    requests = [
        [tensor("user", "UINT64", own), tensor("item", "INT64", [4]), tensor("price", "FP32", [0.5]),
         tensor("words", "BYTES", ["lamp", "sofa"], [1, 2])]
        for own in users
    ]  # fmt: skip
    bodies = [binary(inputs, parameters={"binary_data_output": True}) for inputs in requests]

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(
            *(asked(app, "POST", INFER, body, headers) for body, headers in bodies * 10)
        )  # fmt: skip

    answers = asyncio.run(all_at_once())
    app.close()
    for answer, own in zip(answers, users * 10, strict=True):
        batch = predictor.fields.batch({"user": own, "item": [4], "price": [0.5], "words": [["lamp", "sofa"]]})
        assert answer.status == 200
        values = predictor.predict(batch).values
        assert [np.float32(each).tobytes() for each in zip(*outputs_of(answer).values(), strict=True)] == [
            row.tobytes() for row in values
        ]  # fmt: skip


def test_a_failure_in_a_thread_is_told_and_the_next_request_is_answered(predictor: Predictor, monkeypatch: Any) -> None:
    app = ServingApp(predictor, ServerSettings(str(predictor.folder), threads=2))
    body = b'{"instances": [{"user": 1, "item": 4, "words": ["lamp"], "price": 0.5}]}'
    with monkeypatch.context() as broken:
        broken.setattr(Predictor, "predict", Mock(side_effect=RuntimeError))
        assert ask(app, "POST", "/v1/models/shop:predict", body).status == 500
    assert ask(app, "POST", "/v1/models/shop:predict", body).status == 200
    app.close()
