"""Messages of a topic as files: each exactly once, also after kills, and never a gap that is passed over."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from persia_cli.data.land.folder import RECORD
from persia_cli.data.land.messages import MessageFlawError, columns_of, json_rows
from persia_cli.errors import DataError, UserError
from persia_cli.main import app
from tests.support.kafka import PARTITIONS, Broker, broker, objects


@pytest.fixture
def mock() -> Iterator[Broker]:
    with broker() as made:
        yield made


def land(made: Broker, folder: Path, *options: str) -> str:
    """Land all that is there; return what the command printed."""
    result = CliRunner().invoke(app, ["data", "land", made.address, "--to", str(folder), "--once", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def landed(folder: Path) -> list[int]:
    """Return the ids in all files, in order."""
    files = sorted(folder.glob("*.parquet"))
    return sorted(value for file in files for value in pq.read_table(file)["id"].to_pylist())


def test_each_message_is_in_one_file_and_a_second_run_goes_on(mock: Broker, tmp_path: Path) -> None:
    mock.send(objects(range(100)))
    land(mock, tmp_path / "d")
    assert landed(tmp_path / "d") == list(range(100))
    mock.send(objects(range(100, 150)), partition=2)
    land(mock, tmp_path / "d")
    assert landed(tmp_path / "d") == list(range(150))
    names = sorted(path.name for path in (tmp_path / "d").glob("*.parquet"))
    assert names[:4] == [f"{number:012}-clicks-p{number}-0-24.parquet" for number in range(PARTITIONS)]
    assert names[4:] == ["000000000004-clicks-p2-25-74.parquet"]


@pytest.mark.slow
def test_each_message_is_landed_once_however_often_the_process_is_killed(mock: Broker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "persia_cli", "data", "land", mock.address, "--to", str(tmp_path / "d")]
    command += ["--every-s", "0.1"]
    draw, sent = np.random.default_rng(0), 0
    for _ in range(20):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30.0
        before = len(list((tmp_path / "d").glob("*.parquet")))
        while len(list((tmp_path / "d").glob("*.parquet"))) <= before and time.monotonic() < deadline:
            mock.send(objects(range(sent, sent + 60)))
            sent += 60
            time.sleep(draw.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    land(mock, tmp_path / "d")
    counts = Counter(landed(tmp_path / "d"))
    assert sorted(counts) == list(range(sent))
    assert set(counts.values()) == {1}
    assert not list((tmp_path / "d").glob(".landing-*"))


def test_sigterm_writes_what_is_in_memory(mock: Broker, tmp_path: Path) -> None:
    mock.send(objects(range(30)))
    command = [sys.executable, "-m", "persia_cli", "data", "land", mock.address, "--to", str(tmp_path / "d")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60.0
    while not (tmp_path / "d" / RECORD).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)  # messages come to memory, where nothing shows them
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 0, errors
    assert landed(tmp_path / "d") == list(range(30))


def test_a_gap_is_refused_and_nothing_is_passed_over(mock: Broker, tmp_path: Path) -> None:
    """The mock keeps the last 5 MB of a partition."""
    mock.send(objects(range(10)), partition=0)
    land(mock, tmp_path / "d")
    mock.send([json.dumps({"id": 0, "item": "x" * 200_000, "price": 0.0}).encode()] * 60, partition=0)
    with pytest.raises(DataError, match="were removed before they were landed"):
        land(mock, tmp_path / "d")


def test_a_topic_that_was_made_again_is_refused(mock: Broker, tmp_path: Path) -> None:
    mock.send(objects(range(10)), partition=0)
    land(mock, tmp_path / "d")
    file = tmp_path / "d" / RECORD
    record = json.loads(file.read_text())
    [_, checksum] = record["positions"]["0"]
    file.write_text(json.dumps(record | {"positions": record["positions"] | {"0": [100, checksum]}}))
    with pytest.raises(DataError, match="100 messages are landed already"):
        land(mock, tmp_path / "d")
    file.write_text(json.dumps(record | {"positions": record["positions"] | {"0": [9, checksum]}}))
    with pytest.raises(DataError, match="offset 8 of partition 0 of topic clicks is not the one that was landed"):
        land(mock, tmp_path / "d")


def test_a_kill_between_record_and_name_loses_and_repeats_nothing(mock: Broker, tmp_path: Path) -> None:
    folder = tmp_path / "d"

    def unname(file: Path) -> None:
        file.rename(file.with_name(f".landing-{file.name}"))

    mock.send(objects(range(10)), partition=0)
    land(mock, folder)
    [first] = folder.glob("*.parquet")
    unname(first)
    land(mock, folder)
    assert landed(folder) == list(range(10)), "the record has the file"
    first.unlink()
    before = (folder / RECORD).read_bytes()
    mock.send(objects(range(10, 15)), partition=0)
    land(mock, folder)
    [second] = folder.glob("*.parquet")
    unname(second)
    (folder / RECORD).write_bytes(before)
    land(mock, folder)
    assert landed(folder) == list(range(10, 15)), "the record does not have the file"
    assert [path.name for path in folder.iterdir() if path.name != RECORD] == [second.name]


def test_removed_files_are_not_landed_again(mock: Broker, tmp_path: Path) -> None:
    mock.send(objects(range(10)), partition=0)
    land(mock, tmp_path / "d")
    for file in (tmp_path / "d").glob("*.parquet"):
        file.unlink()
    mock.send(objects(range(10, 12)), partition=1)
    land(mock, tmp_path / "d")
    assert landed(tmp_path / "d") == [10, 11]
    [file] = (tmp_path / "d").glob("*.parquet")
    assert file.name == "000000000001-clicks-p1-0-1.parquet", "a reader that follows the names misses nothing"
    file.unlink()
    mock.send([b'{"id": "a text"}'], partition=1)
    with pytest.raises(UserError, match='column id has "a text", and int64 so far'):
        land(mock, tmp_path / "d")
    (tmp_path / "d" / "old.parquet").touch()
    (tmp_path / "d" / RECORD).unlink()
    with pytest.raises(UserError, match="give an empty folder"):
        land(mock, tmp_path / "d")


def test_folders_of_other_topics_and_processes_are_refused(mock: Broker, tmp_path: Path) -> None:
    mock.send(objects(range(4)))
    land(mock, tmp_path / "d")
    record = json.loads((tmp_path / "d" / RECORD).read_text())
    (tmp_path / "d" / RECORD).write_text(json.dumps(record | {"topic": "views"}))
    with pytest.raises(UserError, match="has messages of topic views"):
        land(mock, tmp_path / "d")
    lock = os.open(tmp_path / "d", os.O_RDONLY)
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process lands messages there"):
        land(mock, tmp_path / "d")
    os.close(lock)


def test_a_message_of_another_form_ends_landing_after_those_before_it(mock: Broker, tmp_path: Path) -> None:
    mock.send([*objects(range(3)), b"[1]", *objects(range(4, 6))], partition=0)
    with pytest.raises(UserError, match=r"offset 3 of partition 0 of topic clicks: it is no JSON object"):
        land(mock, tmp_path / "d")
    assert landed(tmp_path / "d") == [0, 1, 2]
    assert "left out" in land(mock, tmp_path / "d", "--max-bad", "1")
    assert landed(tmp_path / "d") == [0, 1, 2, 4, 5]
    mock.send([json.dumps({"id": 6, "new": 1}).encode()], partition=0)
    with pytest.raises(UserError, match="column new is not in the files so far"):
        land(mock, tmp_path / "d")


def test_arrow_messages_have_all_rows_of_all_batches(mock: Broker, tmp_path: Path) -> None:
    def stream(*batches: list[int]) -> bytes:
        sink = io.BytesIO()
        with pa.ipc.new_stream(
            sink, pa.schema([("id", pa.int64()), ("shop", pa.dictionary(pa.int8(), pa.string()))])
        ) as w:
            for ids in batches:
                shops = pa.array(["a"] * len(ids)).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
                w.write_batch(pa.record_batch([pa.array(ids, pa.int64()), shops], names=["id", "shop"]))
        return sink.getvalue()

    mock.send([stream([0, 1], [2]), stream([]), stream([3], [4], [5, 6])])
    land(mock, tmp_path / "d", "--format", "arrow")
    assert landed(tmp_path / "d") == list(range(7))


def rows_of(*rows: Any, schema: Any = None) -> Any:
    return json_rows([json.dumps(row).encode() for row in rows], schema)


def test_values_are_never_changed_to_fit_a_column() -> None:
    first = rows_of({"a": 1, "b": "x", "c": [1]}, {"a": 2, "d": 1}, {"d": 1.5, "e": "2026-11-29"})
    assert first.schema.types == [pa.int64(), pa.string(), pa.list_(pa.int64()), pa.float64(), pa.string()]
    empty = dict.fromkeys("abcde")
    assert rows_of({"d": 3}, {}, schema=first.schema).to_pylist() == [empty | {"d": 3.0}, empty]
    for wrong in ({"a": 1.5}, {"a": True}, {"a": "1"}, {"b": 1}, {"c": [1.5]}, {"d": True}, {"a": 2**63}, {"f": 0}):
        with pytest.raises(MessageFlawError, match=f"column {next(iter(wrong))} ") as caught:
            rows_of({"a": 1}, {"a": 2}, wrong, {"a": 3}, schema=first.schema)
        assert caught.value.place == 2
    large = columns_of("a:uint64,c:string[]")
    assert rows_of({"a": 2**64 - 1, "c": ["x"]}, schema=large).to_pylist() == [{"a": 2**64 - 1, "c": ["x"]}]
    assert rows_of({"a": 1}, {"a": 2**64 - 1}).to_pylist() == [{"a": 1}, {"a": 2**64 - 1}]
    for other in ("x", True, [1], {"b": 1}):
        with pytest.raises(MessageFlawError, match=r"Column\(/a\) changed from number") as caught:
            rows_of({"a": 1.5}, {"a": other}, {"a": 1})
        assert caught.value.place == 1
    with pytest.raises(UserError, match="--columns a:int64"):
        rows_of({"a": None})
    with pytest.raises(UserError, match="have no column"):
        rows_of({}, {})


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[1]", b'{"a":1', b'{"a":1}{"a":2}', b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":1,"a":2}']
)
def test_a_message_is_one_object_and_another_is_named(text: bytes) -> None:
    with pytest.raises(MessageFlawError) as caught:
        json_rows([b'{"a":1}', text, b"[]"], None)
    assert caught.value.place == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["kafka://127.0.0.1:1/t"], "does not answer"),
        (["kafka://me:pw@h/t"], "credentials belong into --config"),
        (["http://h/t"], "write kafka://BROKER:PORT/TOPIC"),
        (["kafka://h/t", "--columns", "a"], "is not NAME:TYPE"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    monkeypatch.setattr("persia_cli.data.land.topic.ANSWER_S", 1.0)
    result = CliRunner().invoke(app, ["data", "land", *options, "--to", str(tmp_path / "d")])
    assert sentence in str(result.exception)
    assert "pw" not in str(result.exception)


def test_properties_do_not_change_what_is_landed(mock: Broker, tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\nclient.id = me\nauto.offset.reset=latest\n")
    mock.send(objects(range(3)))
    land(mock, tmp_path / "d", "--config", str(file))
    assert landed(tmp_path / "d") == [0, 1, 2]
    file.write_text("no.such.key=1\n")
    with pytest.raises(UserError, match="No such configuration property"):
        land(mock, tmp_path / "d", "--config", str(file))
