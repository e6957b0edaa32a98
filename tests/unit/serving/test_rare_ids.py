"""A request's rare id is scored as in preparation: by the row of all rare ids."""

from pathlib import Path

import pytest

from persia_cli.data.read.reserved_ids import RARE_ID
from persia_cli.errors import UserError
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.row_reader import Missing
from tests.support.small_model import USERS, write_small_model


def score(folder: Path, user: int, item: int = 4, missing: Missing | None = None) -> float:
    model = Predictor.open(folder, missing)
    batch = model.fields.batch({"user": [user], "item": [item], "words": [["lamp"]], "price": [0.5]})
    return float(model.predict(batch).logits[0, 0])


def test_ids_without_a_row_are_rare_ones_where_preparation_made_such(tmp_path: Path) -> None:
    shop = write_small_model(tmp_path / "shop", [*USERS, RARE_ID])
    rare = score(shop, RARE_ID)
    assert score(shop, 99) == score(shop, 99, missing="rare") == rare != score(shop, 99, missing="zeros")
    assert score(shop, 1) == score(shop, 1, missing="zeros") != rare
    # Items have no rare id.
    assert score(shop, 1, item=99) == score(shop, 1, item=99, missing="zeros")


def test_they_are_zeros_in_other_models(tmp_path: Path) -> None:
    shop = write_small_model(tmp_path / "shop")
    assert score(shop, 99) == score(shop, 99, missing="zeros") != score(shop, 99, missing="init")
    with pytest.raises(UserError, match="has a row for rare ids, so missing=rare has none to give"):
        Predictor.open(shop, missing="rare")
