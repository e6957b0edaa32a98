"""Rewrite tests/contract/message_bytes.json from the samples of its test: `python -m scripts.message_bytes`."""

import json

from tests.contract.test_message_bytes import FILE, SAMPLES, frames_of


def written() -> str:
    """Return the bytes of a sample of each message, by its name, as the file has them."""
    return json.dumps({type(message).__name__: frames_of(message) for message in SAMPLES}, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
