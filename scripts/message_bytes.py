"""Add samples of new messages to tests/contract/message_bytes.json: `python -m scripts.message_bytes`.

Samples that this version reads or writes differently are replaced.
"""

import warnings
from typing import Any

import msgspec
from hypothesis.errors import NonInteractiveExampleWarning

from persia_cli.errors import WireError
from persia_cli.wire.frames import BY_KIND
from tests.contract.test_message_bytes import FILE, SAMPLES, described, frames_of, message_of
from tests.support.any_message import messages


def holds(sample: dict[str, Any]) -> bool:
    """Return True if a sample is read and written without a difference."""
    try:
        message = message_of(sample["frames"])
    except WireError:
        return False
    return bool(described(message) == sample["message"] and frames_of(message) == sample["frames"])


def renewed() -> list[dict[str, Any]]:
    """Return the samples that hold, and one of each other kind of message with random values."""
    samples = [sample for sample in SAMPLES if holds(sample)]
    named = {name for sample in samples for name in sample["message"]}
    for kind in BY_KIND.values():
        if kind.__name__ not in named:
            message = messages(kind).example()
            samples.append({"message": described(message), "frames": frames_of(message)})
    return samples


def as_text(samples: list[dict[str, Any]]) -> str:
    """Return the content of the file: one line a sample."""
    return "[\n" + ",\n".join(msgspec.json.encode(sample).decode() for sample in samples) + "\n]\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore", NonInteractiveExampleWarning)
    FILE.write_text(as_text(renewed()), encoding="utf-8")
