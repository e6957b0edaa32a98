"""An export refuses a checkpoint whose rows have changed since they were saved, in any format."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.errors import CheckpointError
from persia_cli.export.artefact import Order, write_artefact
from persia_cli.export.output import Output
from persia_cli.export.plain import write_plain
from persia_cli.observe.saved_run import find_model
from tests.support.saved_rows import made_up_rows
from tests.unit.checkpoint.made_up import write_sorted


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_changed_rows_are_not_exported(tmp_path: Path, form: str) -> None:
    checkpoint = write_sorted(tmp_path / "run", 5, made_up_rows(2000, 8, 5, ["a", "b"]), files=2)
    damaged = sorted((checkpoint / "embeddings").iterdir())[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    model, place = find_model(tmp_path / "run"), Output(tmp_path / "shop")
    network: Any = None  # rows are compared before it is used

    def export() -> None:
        if form == "onnx":
            write_artefact(Order(model, "shop", "float32", model.run), place, network)
        else:
            write_plain(model, place, network, lambda what, done, of: None)

    with pytest.raises(CheckpointError, match=f"{damaged.name} has changed since it was saved"):
        export()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
