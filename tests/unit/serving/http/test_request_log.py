"""The request log has whole requests, each once, in files that appear when they are whole; it delays no answer."""

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.errors import UserError
from persia_cli.serving.http import request_log as module
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.log_files import PART, PREFIX, LogFile, prepare_folder
from persia_cli.serving.http.metrics import ServingMetrics
from persia_cli.serving.http.request_log import RequestLog, Rotation
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.conftest import poll_for
from tests.support.asgi import ask, binary, outputs_of, tensor
from tests.support.full_disk import leave_free, small_disk
from tests.support.small_model import LARGE

INFER, PREDICT = "/v2/models/shop/infer", "/v1/models/shop:predict"
INPUTS = [
    tensor("user", "UINT64", [LARGE]),
    tensor("item", "INT64", [4, 5, 99]),
    tensor("words", "BYTES", ["lamp", "sofa", "chair"]),
    tensor("words.lengths", "INT32", [1, 0, 2]),
    tensor("price", "FP32", np.array([0.1, 2.5, -3.7], np.float32).tolist()),
]
ROWS = {
    "instances": [
        {"user": 1, "item": 2, "words": ["lamp"], "price": 1},
        {"user": 2, "item": 3, "words": None, "price": 0.5},
    ]
}
COLUMNS = {"user": [1], "item": [2], "words": [["lamp"]], "price": [0.5]}
SCORES = np.array([[0.25, 0.75]], np.float32)
NEVER = Rotation(flush_s=0.01, seconds=3600.0)
LIMIT_S = 20.0


class Logging:
    """A log, and the application that writes it."""

    def __init__(self, predictor: Predictor, folder: Path, sample: float, rotation: Rotation) -> None:
        self.folder, self.figures = folder, ServingMetrics()
        self.log = RequestLog(folder, predictor, sample, self.figures, rotation)
        settings = ServerSettings(str(predictor.folder))
        self.app = ServingApp(predictor, settings, None, self.figures, self.log)

    def offer(self, name: str) -> None:
        self.log.offer(name, "17", COLUMNS, SCORES, 100)

    def logged(self) -> int:
        return int(self.figures.logged.value)

    def missed(self, reason: str) -> int:
        return int(self.figures.not_logged.labels(reason).value)

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    def table(self) -> Any:
        return pa.concat_tables([pq.read_table(path) for path in self.files()])

    def ids(self) -> list[str]:
        return sorted(self.table().column("request_id").to_pylist())


@contextmanager
def logging_to(
    folder: Path, predictor: Predictor, sample: float = 1.0, rotation: Rotation = NEVER
) -> Iterator[Logging]:
    """A log, which is closed at the end of the block."""
    found = Logging(predictor, folder, sample, rotation)
    try:
        yield found
    finally:
        found.log.close(LIMIT_S)
        assert not found.log._thread.is_alive()


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".parquet")


def test_requests_are_logged_as_used(predictor: Predictor, tmp_path: Path) -> None:
    with logging_to(tmp_path, predictor) as found:
        body, headers = binary(INPUTS, id="binary")
        nothing = [{**each, "data": [], "shape": [0]} for each in INPUTS]
        answers = [
            ask(found.app, "POST", INFER, json.dumps({"inputs": INPUTS, "id": "json"}).encode()),
            ask(found.app, "POST", INFER, body, headers=headers),
            ask(found.app, "POST", PREDICT, json.dumps(ROWS).encode(), headers={"x-request-id": "rows"}),
            ask(found.app, "POST", PREDICT, json.dumps(ROWS).encode()),
            ask(found.app, "POST", INFER, json.dumps({"inputs": nothing}).encode()),
        ]
        assert {answer.status for answer in answers} == {200}
        assert ask(found.app, "POST", INFER, b'{"inputs": []}').status == 400
    [path] = found.files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert hidden(tmp_path) == []
    table = found.table()
    made = answers[3].headers["x-request-id"]
    assert answers[2].headers["x-request-id"] == "rows"
    assert "x-request-id" not in answers[0].headers
    assert table.column("request_id").to_pylist() == ["json"] * 3 + ["binary"] * 3 + ["rows"] * 2 + [made] * 2
    assert set(table.column("model_version").to_pylist()) == {"17"}
    assert table.column("request_time").type == pa.timestamp("us", "UTC")
    assert table.column("user").to_pylist() == [LARGE] * 6 + [1, 2] * 2
    assert table.column("words").to_pylist()[:3] == [["lamp"], [], ["sofa", "chair"]]
    for first, answer in ((0, answers[0]), (3, answers[1])):
        for name, values in outputs_of(answer).items():
            assert table.column(name).to_pylist()[first : first + 3] == values
    assert [row["buy_probability"] for row in answers[2].json()["predictions"]] == (
        table.column("buy_probability").to_pylist()[6:8]
    )
    assert found.logged() == 5  # one of them has no samples


def test_whole_requests_are_sampled_with_equal_probability(predictor: Predictor, tmp_path: Path) -> None:
    with logging_to(tmp_path, predictor, 0.1) as found:
        drawn = sum(found.log.draw() for _ in range(50_000))
        assert abs(drawn - 5000) < 6 * (50_000 * 0.1 * 0.9) ** 0.5
        for number in range(100):
            body = json.dumps({"inputs": INPUTS, "id": str(number)}).encode()
            assert ask(found.app, "POST", INFER, body).status == 200
    counts = found.table().column("request_id").value_counts().to_pylist()
    assert 0 < len(counts) < 50
    assert {each["counts"] for each in counts} == {3}


def test_ids_of_a_header_that_cannot_be_returned_are_replaced(predictor: Predictor, tmp_path: Path) -> None:
    with logging_to(tmp_path, predictor) as found:
        for given in ("", "\u00e9", "x" * 201, "a\tb"):
            answer = ask(found.app, "POST", PREDICT, json.dumps(ROWS).encode(), headers={"x-request-id": given})
            assert len(answer.headers["x-request-id"]) == 32


def test_requests_beyond_the_limits_are_counted_and_do_not_wait(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, started = threading.Event(), threading.Event()
    append = LogFile.append

    def slow(self: LogFile, batch: Any) -> None:
        started.set()
        assert going.wait(LIMIT_S)
        append(self, batch)

    monkeypatch.setattr(LogFile, "append", slow)
    monkeypatch.setattr(module, "MAX_REQUESTS", 3)
    with logging_to(tmp_path, predictor) as found:
        found.offer("0")
        assert started.wait(LIMIT_S)
        for number in range(1, 10):
            found.offer(str(number))
        assert found.missed("full") == 6
        answer = ask(found.app, "POST", PREDICT, json.dumps(ROWS).encode())
        assert answer.status == 200
        assert b'persia_not_logged_requests_total{reason="full"} 7.0' in ask(found.app, "GET", "/metrics").body
        going.set()
    assert found.ids() == ["0", "1", "2", "3"]
    assert found.logged() == 4


@pytest.mark.parametrize(
    "rotation", [Rotation(0.01, 3600.0, 1), Rotation(0.01, 0.0), Rotation(0.01, nbytes=1)],
    ids=["rows", "seconds", "bytes"],
)  # fmt: skip
def test_a_file_is_complete_after_so_many_rows_seconds_or_bytes(
    predictor: Predictor, tmp_path: Path, rotation: Rotation
) -> None:
    with logging_to(tmp_path, predictor, rotation=rotation) as found:
        for number in range(3):
            found.offer(str(number))
            poll_for(lambda number=number: len(found.files()) == number + 1, LIMIT_S, "the next file is there")
    assert hidden(tmp_path) == []
    in_order = [pq.read_table(path).column("request_id").to_pylist() for path in found.files()]
    assert in_order == [["0"], ["1"], ["2"]]


def test_only_unfinished_files_of_killed_workers_are_removed(
    predictor: Predictor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / f"{PREFIX}0{PART}"
    with logging_to(tmp_path, predictor) as found:
        found.offer("live")
        poll_for(lambda: len(hidden(tmp_path)) == 1, LIMIT_S, "a file is begun")
        [live] = hidden(tmp_path)
        left.write_bytes(b"half of a Parquet file")
        with logging_to(tmp_path, predictor):
            poll_for(lambda: hidden(tmp_path) == [live], LIMIT_S, "what was left is removed")
    assert "1 file of the request log that a killed worker had begun" in caplog.text
    assert found.ids() == ["live"]


def test_a_full_disk_is_logged_once_and_costs_the_file_alone(
    predictor: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    rotation = Rotation(0.01, 0.0)
    with small_disk(2**20) as disk, logging_to(disk, predictor, rotation=rotation) as found:
        found.offer("before")
        poll_for(lambda: found.logged() == 1, LIMIT_S, "a request is logged")
        filler = leave_free(disk, 0)
        for number in (1, 2):
            found.offer("missed")
            poll_for(lambda number=number: found.missed("disk") == number, LIMIT_S, "it was tried")
        assert ask(found.app, "POST", PREDICT, json.dumps(ROWS).encode()).status == 200
        poll_for(lambda: found.missed("disk") == 3, LIMIT_S, "it was tried")
        filler.unlink()
        found.offer("after")
        poll_for(lambda: found.logged() == 2, LIMIT_S, "a request is logged")
        found.log.close(LIMIT_S)
        assert found.ids() == ["after", "before"]
        assert hidden(disk) == []
    told = [record.message for record in caplog.records]
    assert told == [
        f"disk full: cannot write {disk}; free space or choose another place; serving goes on, and requests that are "
        "not logged are counted",
        f"requests are logged again in {disk}",
    ]


def test_a_folder_of_a_log_is_made_for_its_user_alone(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "log")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    prepare_folder(tmp_path / "log")
    with pytest.raises(UserError, match=r"--log .*/no/log: there is no folder .*/no; create it first"):
        prepare_folder(tmp_path / "no" / "log")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file; name a folder"):
        prepare_folder(tmp_path / "file")


def test_memory_is_bounded_also_by_a_value_for_all_samples(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", 10**6)
    columns = {"user": [1], "item": [2], "words": [["w" * 1000]], "price": [0.5]}
    with logging_to(tmp_path, predictor, rotation=Rotation(flush_s=3600.0)) as found:
        found.log.offer("one", "17", columns, SCORES, 1000)
        found.log.offer("many", "17", columns, np.repeat(SCORES, 1000, axis=0), 1000)
        assert found.missed("large") == 1
        monkeypatch.setattr(module, "MAX_BYTES", 10**5)
        found.log.offer("some", "17", columns, np.repeat(SCORES, 100, axis=0), 1000)
        assert found.missed("full") == 1
