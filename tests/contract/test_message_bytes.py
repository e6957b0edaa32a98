"""The bytes of messages, as they have been since this version of the protocol."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from persia_cli.wire.frames import BY_KIND, decode, encode
from persia_cli.wire.job_messages import PhaseWork
from persia_cli.wire.message import Message

REQUEST = 258
FILE = Path(__file__).parent / "message_bytes.json"
"""Samples of messages and their frames in hexadecimal; `python -m scripts.message_bytes` adds those of a new kind."""
SAMPLES: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def described(value: Any) -> Any:
    """Return a message, or a part of one, as JSON: objects with the names of types and fields, and arrays as bytes."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "bytes": value.tobytes().hex()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return {type(value).__name__: {name: described(getattr(value, name)) for name in value.__struct_fields__}}
    if hasattr(value, "_asdict"):
        return {type(value).__name__: described(value._asdict())}
    if isinstance(value, dict):
        return {str(key): described(each) for key, each in value.items()}
    return [described(each) for each in value] if isinstance(value, list | tuple) else value


def frames_of(message: Message) -> list[str]:
    """Return the frames of a message in hexadecimal."""
    return [bytes(frame).hex() for frame in encode(REQUEST, message)]


def message_of(frames: list[str]) -> Message:
    """Return the message of frames in hexadecimal."""
    number, message = decode([bytes.fromhex(frame) for frame in frames])
    assert number == REQUEST
    return message


def test_every_message_and_every_work_of_a_phase_has_a_sample() -> None:
    assert {next(iter(sample["message"])) for sample in SAMPLES} == {kind.__name__ for kind in BY_KIND.values()}
    works = [sample["message"]["Instruction"]["work"] for sample in SAMPLES if "Instruction" in sample["message"]]
    assert {next(iter(work)) for work in works} == {kind.__name__ for kind in get_args(PhaseWork)}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: next(iter(sample["message"])))
def test_bytes_are_read_and_written_as_they_were(sample: dict[str, Any]) -> None:
    """Raise PROTOCOL if a change breaks this on purpose: older replicas no longer understand newer ones."""
    message = message_of(sample["frames"])
    assert described(message) == sample["message"]
    assert frames_of(message) == sample["frames"]


def test_a_look_up_is_laid_out_as_described() -> None:
    """Kind; msgpack of (request, fields, shapes of arrays by group, no loan); then the arrays."""
    [sample] = [sample for sample in SAMPLES if "LookUp" in sample["message"]]
    kind, header, keys, tables = (bytes.fromhex(frame) for frame in sample["frames"])
    assert kind == b"\x30"
    batch = b"\x93\x00\xcd\x03\xe8\x02"  # (0, 1000, 2)
    fields = b"\x93" + batch + b"\xc3" + b"\x91\x01"  # (batch, True, (1,))
    group = b"\x92" + b"\x91\x02" + b"\x91\x02"  # two keys, two tables
    assert header == b"\x94" + b"\xcd\x01\x02" + fields + b"\x91\x91" + group + b"\xc0"
    assert keys == b"\x01" + bytes(7) + b"\xff" * 8
    assert tables == b"\x00\x00\xfe\xff"
