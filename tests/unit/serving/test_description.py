"""A description of an exported model with inconsistent parts is refused before it is used."""

import random
from pathlib import Path

import msgspec
import pytest

from persia_cli.errors import CheckpointError
from persia_cli.serving.description import (
    FEATURES,
    FORMAT_VERSION,
    GOLDEN,
    MODEL,
    NETWORK,
    FileNote,
    FrozenFeature,
    FrozenGroup,
    FrozenTable,
    ModelDescription,
    ModelOutput,
    read_description,
    write_description,
)

TABLE = FrozenTable("items", 3, 0, 0, 1, 2, 5, 0.1, 2**24, 1, 0, 0)


def description_of(group: FrozenGroup) -> ModelDescription:
    files = [FileNote(path, 0, "0" * 64) for path in (NETWORK, FEATURES, GOLDEN, group.index, group.values)]
    return ModelDescription(
        *(FORMAT_VERSION, "0.1.0", "shop", "run", 10, 1000, 7, "ffnn", 0),
        features=[FrozenFeature("item", group.number, "items", "sum")],
        groups=[group],
        inputs=[],
        outputs=[ModelOutput("click", "click", "logistic")],
        files=files,
    )


def test_a_description_with_any_byte_changed_is_refused(tmp_path: Path) -> None:
    """Also if it would still be valid, such as with another salt or bound, for which all rows would differ."""
    write_description(tmp_path, description_of(FrozenGroup(0, 4, "float32", 16, "float32", [TABLE])))
    path, rng = tmp_path / MODEL, random.Random(3)
    content = path.read_bytes()
    for at in range(0, len(content), 5):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        with pytest.raises(CheckpointError, match=r"model\.json is damaged: .* its own checksum; export the run again"):
            read_description(tmp_path)
    path.write_bytes(content.replace(b'"salt": 5', b'"salt": 6'))
    with pytest.raises(CheckpointError, match="does not match its own checksum"):
        read_description(tmp_path)


def test_another_format_is_distinguished_from_damage(tmp_path: Path) -> None:
    description = description_of(FrozenGroup(0, 4, "float32", 16, "float32", [TABLE]))
    old = msgspec.json.encode(msgspec.structs.replace(description, format_version=1))
    (tmp_path / MODEL).write_bytes(old)  # which had no checksum
    with pytest.raises(CheckpointError, match=f"has format version 1, and this persia reads {FORMAT_VERSION}; export"):
        read_description(tmp_path)
    write_description(tmp_path, msgspec.structs.replace(description, format_version=FORMAT_VERSION + 1))
    with pytest.raises(CheckpointError, match=f"has format version {FORMAT_VERSION + 1}"):
        read_description(tmp_path)
