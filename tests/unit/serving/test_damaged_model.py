"""A damaged folder is refused, or answers with a sentence: no process dies of any content."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from persia_cli.errors import CheckpointError
from persia_cli.serving.description import ROWS
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
