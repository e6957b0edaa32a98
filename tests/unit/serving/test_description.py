"""A description of an exported model whose parts do not fit each other is refused before anything is read by it."""

from pathlib import Path

import msgspec
import pytest

from persia_cli.errors import CheckpointError, UserError
from persia_cli.serving.description import (
    FEATURES,
    GOLDEN,
    NETWORK,
    FileNote,
    Form,
    FrozenFeature,
    FrozenGroup,
    FrozenTable,
    ModelDescription,
    ModelOutput,
    read_description,
    stride_of,
    write_description,
)
from persia_cli.serving.predictor import Predictor

TABLE = FrozenTable("items", 3, 0, 0, 1, 2, 5, 0.1, 2**24, 1, 0, 0)


def description_of(group: FrozenGroup) -> ModelDescription:
    files = [FileNote(path, 0, "0" * 64) for path in (NETWORK, FEATURES, GOLDEN, group.index, group.values)]
    return ModelDescription(
        *(1, "0.1.0", "shop", "run", 10, 1000, 7, "ffnn", 0),
        features=[FrozenFeature("item", group.number, "items", "sum")],
        groups=[group],
        inputs=[],
        outputs=[ModelOutput("click", "click", "logistic")],
        files=files,
    )


@pytest.mark.parametrize("form", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_rows_of_other_bytes_than_their_form_has_are_refused(form: Form, tmp_path: Path) -> None:
    good = FrozenGroup(0, 16, form, stride_of(16, form), "float32", [TABLE])
    write_description(tmp_path, description_of(good))
    assert read_description(tmp_path) == description_of(good)
    for stride in (good.stride - 1, good.stride + 1, 1, 2**40):
        write_description(tmp_path, description_of(msgspec.structs.replace(good, stride=stride)))
        with pytest.raises(CheckpointError, match=f"rows of 16 values in {form} do not have {stride} bytes"):
            read_description(tmp_path)


def test_an_unknown_word_for_missing_ids_is_refused(tmp_path: Path) -> None:
    for word in ("none", ""):
        with pytest.raises(UserError, match=r"missing=.* is none of zeros, init, rare"):
            Predictor.open(tmp_path, missing=word)  # type: ignore[arg-type]
