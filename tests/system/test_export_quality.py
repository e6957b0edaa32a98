"""The cost of rows in fewer bits, for a model of real data."""

from pathlib import Path

import pytest

from persia_cli.data.prepare.recipe import PrepareOptions, load_recipe
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


@pytest.fixture
def movielens_rows(real_data: Path, tmp_path: Path) -> Path:
    """A million real ratings as Parquet, prepared by the recipe."""
    if not (real_data / "ml-1m" / "ratings.parquet").exists():
        pytest.skip("no ml-1m/ratings.parquet among the real data")
    output = tmp_path / "movielens"
    load_recipe("movielens").prepare(real_data / "ml-1m", output, PrepareOptions(), lambda done, total: None)
    return output


def test_criteo_keeps_its_auc(criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path={criteo_rows}", "model.hidden=[64, 32]"]
    assert _sizes(words, 5000, tmp_path) == pytest.approx([1, 0.5, 0.5, 24 / 64, 12 / 64])


def test_movielens_keeps_its_auc(movielens_rows: Path, tmp_path: Path) -> None:
    words = ["conf=movielens_1m", f"dataset.path={movielens_rows}", "train.epochs=1", "model.dim=16"]
    assert _sizes(words, 200_000, tmp_path) == pytest.approx([1, 0.5, 0.5, 24 / 64, 12 / 64])


def _sizes(words: list[str], samples: int, tmp_path: Path) -> list[float]:
    """Train, export rows in each format, and compare; returns the sizes of rows, as parts of those of float32."""
    result = train([*words, "cluster=embedded"], tmp_path / "run")
    model = find_model(result.run_dir)
    network, sizes = SavedNetwork(model.run, model.checkpoint), []
    for form in FORMS:
        folder = tmp_path / form
        found = write_artefact(Order(model, "scores", form, model.run), Output(folder), network)
        proof = compare(model.run, network, folder)
        proof.require(form)
        assert proof.samples > samples
        assert proof.labels[0].auc is not None
        assert proof.labels[0].difference <= DIFFERENCE[form]
        assert abs(proof.labels[0].auc[0] - proof.labels[0].auc[1]) <= AUC[form]
        sizes.append(sum((folder / group.values).stat().st_size for group in found.groups))
    return [size / sizes[0] for size in sizes]
