"""A damaged model is refused, or answers with a sentence: no process dies of any content."""

import random
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from persia_cli.errors import CheckpointError
from persia_cli.serving.description import (
    FEATURES,
    FORMAT_VERSION,
    GOLDEN,
    MODEL,
    NETWORK,
    ROWS,
    FileNote,
    FrozenFeature,
    FrozenGroup,
    FrozenTable,
    ModelDescription,
    ModelOutput,
    read_description,
    write_description,
)
from persia_cli.serving.predictor import Predictor
from tests.support.small_model import LARGE, WORDS, write_small_model

FILES = ("model.json", "dense.onnx", "features.yaml", "golden.arrow", "rows/0.index", "rows/0.values")
DAMAGES = 60
REQUEST = {
    "user": [1, 2, 3, LARGE] * 5, "item": list(range(20)), "words": [[*WORDS, "desk"]] * 20, "price": [0.5] * 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "shop")


def damaged(content: bytes, draw: np.random.Generator) -> bytes:
    """Bytes with a flipped bit, a replaced word, or without their end."""
    found, at = bytearray(content), int(draw.integers(len(content)))
    word = at // 8 * 8
    match draw.integers(4):
        case 0:
            found[at] ^= 1 << int(draw.integers(8))
        case 1:
            found[word : word + 8] = draw.bytes(len(content[word : word + 8]))
        case 2:
            extreme = np.uint64([0, 2**32 - 1, 2**63, 2**64 - 1][draw.integers(4)]).tobytes()
            found[word : word + 8] = extreme[: len(content[word : word + 8])]
        case _:
            del found[at:]
    return bytes(found)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_and_ends_no_process(model: Path, tmp_path: Path, name: str) -> None:
    """Rows are compared with their checksums on request only: otherwise they may give other numbers, or an error."""
    folder, draw = tmp_path / "shop", np.random.default_rng(len(name))
    shutil.copytree(model, folder)
    content, refused = (folder / name).read_bytes(), 0
    for _ in range(DAMAGES):
        (folder / name).unlink()  # never written into: other processes have it mapped
        (folder / name).write_bytes(bad := damaged(content, draw))
        if bad == content:
            continue
        with pytest.raises(CheckpointError):
            Predictor.open(folder, check=True)
        try:
            with np.errstate(all="ignore"):
                predictor = Predictor.open(folder, missing="init")
                predictor.predict(predictor.fields.batch(REQUEST))
        except CheckpointError:
            refused += 1
        else:
            assert name.startswith(f"{ROWS}/")
    assert refused > 0


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
