"""What rows in fewer bits cost a model of real data."""

from pathlib import Path

import pytest

from persia_cli.export.artefact import Order, write_artefact
from persia_cli.export.output import Output
from persia_cli.export.saved_network import SavedNetwork
from persia_cli.export.verification import AUC, compare
from persia_cli.observe.saved_run import find_model
from persia_cli.serving.description import Form
from persia_cli.serving.golden import DIFFERENCE
from tests.support.jobs import CRITEO_FFNN, train

pytestmark = pytest.mark.slow
FORMS: list[Form] = ["float32", "bfloat16", "float16", "int8", "int4"]


def test_criteo_keeps_its_auc(criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path={criteo_rows}", "cluster=embedded", "train.epochs=1", "model.hidden=[64, 32]"]
    result = train(words, tmp_path / "run")
    model = find_model(result.run_dir)
    network, sizes = SavedNetwork(model.run, model.checkpoint), []
    for form in FORMS:
        folder = tmp_path / form
        found = write_artefact(Order(model, "criteo", form, model.run), Output(folder), network)
        proof = compare(model.run, network, folder)
        proof.require(form)
        assert proof.samples > 5000
        assert proof.labels[0].auc is not None
        assert proof.labels[0].difference <= DIFFERENCE[form]
        assert abs(proof.labels[0].auc[0] - proof.labels[0].auc[1]) <= AUC[form]
        sizes.append(sum((folder / group.values).stat().st_size for group in found.groups))
    assert [size / sizes[0] for size in sizes] == pytest.approx([1, 0.5, 0.5, 24 / 64, 12 / 64])
