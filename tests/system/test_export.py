"""An exported model predicts the same as the training code, without torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.errors import PersiaError, UserError
from persia_cli.export import verification
from persia_cli.main import app
from persia_cli.observe.saved_run import find_model
from persia_cli.serving.description import FEATURES, GOLDEN
from persia_cli.serving.fields import read_fields
from persia_cli.serving.golden import read_golden
from persia_cli.serving.predictor import Predictor
from tests.support.jobs import train
from tests.support.lists import lists_job

LABELS = ("click", "buy")

pytestmark = pytest.mark.slow


def export(run: Path, output: Path, *options: str) -> Result:
    """Run `persia export`."""
    return CliRunner().invoke(app, ["export", str(run), "-o", str(output), *options])


@pytest.fixture(scope="module")
def exported(lists: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's model, exported."""
    output = tmp_path_factory.mktemp("export") / "model"
    result = export(lists / "run", output, "--verify", str(lists / "eval.parquet"))
    assert result.exit_code == 0, result.output
    assert "click: max |Δp|" in result.output
    return output


def test_an_exported_model_has_the_scores_of_persia_predict(
    lists: Path, lists_run: Path, exported: Path, tmp_path: Path
) -> None:
    scores = tmp_path / "scores.parquet"
    done = CliRunner().invoke(app, ["predict", str(lists_run), str(lists / "eval.parquet"), "-o", str(scores)])
    assert done.exit_code == 0, done.output
    expected = pq.read_table(scores)
    samples = pq.read_table(lists / "eval.parquet")
    fields, predictor = read_fields(exported), Predictor.open(exported, check=True)
    batch = fields.batch({name: samples.column(name) for name, _, _ in fields.inputs()})
    found = predictor.predict(batch)
    for task, label in enumerate(LABELS):
        theirs = expected.column(f"{label}_probability").to_numpy()
        assert np.abs(found.values[:, task] - theirs).max() <= 5e-6
    assert found.missing.sum() > 0


def test_a_model_is_served_without_torch(exported: Path) -> None:
    code = (
        "import sys\n"
        "from persia_cli.serving.predictor import Predictor\n"
        "from persia_cli.serving.golden import read_golden\n"
        "from persia_cli.serving.fields import read_fields\n"
        f"predictor = Predictor.open({str(exported)!r}, missing='init', check=True)\n"
        f"read_fields(predictor.folder)\n"
        "golden = read_golden(predictor.folder, predictor.description)\n"
        "predictor.predict(golden.batch)\n"
        "print([name for name in ('torch', 'onnx', 'onnxscript', 'hydra', 'typer') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_an_export_that_fails_its_proof_leaves_nothing(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(verification.DIFFERENCE, "int4", 1e-9)
    result = export(lists / "run", tmp_path / "bad", "--rows", "int4", "--verify", str(lists / "eval.parquet"))
    assert isinstance(result.exception, PersiaError)
    assert "is allowed for rows in int4" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_its_data_is_exported_as_with_it(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that was copied to another place is too."""
    run = train(lists_job(tmp_path), tmp_path / "run").run_dir
    (tmp_path / "eval.parquet").rename(tmp_path / "other.parquet")
    done = export(run, tmp_path / "model", "--verify", str(tmp_path / "other.parquet"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "model" / FEATURES).read_bytes() == (exported / FEATURES).read_bytes()
    monkeypatch.chdir(tmp_path)  # which gets a copy of the record
    checkpoint = find_model(run).checkpoint
    shutil.copytree(checkpoint, tmp_path / "elsewhere" / checkpoint.name)
    shutil.rmtree(run)
    done = export(tmp_path / "elsewhere" / checkpoint.name, tmp_path / "again")
    assert done.exit_code == 0, done.output
    for name in (FEATURES, GOLDEN):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_a_folder_is_replaced_only_on_request(lists: Path, exported: Path, tmp_path: Path) -> None:
    output = Path(shutil.copytree(exported, tmp_path / "model"))
    again = export(lists / "run", output)
    assert isinstance(again.exception, UserError)
    assert "exists already" in str(again.exception)
    assert export(lists / "run", output, "--overwrite", "--name", "shop").exit_code == 0
    assert Predictor.open(output, check=True).description.name == "shop"
    assert list(tmp_path.iterdir()) == [output]


def test_plain_torch_has_the_same_scores_without_persia(lists: Path, exported: Path, tmp_path: Path) -> None:
    output = tmp_path / "plain"
    result = export(lists / "run", output, "--format", "torch")
    assert result.exit_code == 0, result.output
    golden = read_golden(exported, Predictor.open(exported).description)
    model, size = json.loads((output / "model.json").read_text()), golden.batch.size
    offsets, ids = golden.batch.offsets, golden.batch.ids.tolist()
    lists = {
        feature["name"]: [ids[offsets[f * size + s] : offsets[f * size + s + 1]] for s in range(size)]
        for f, feature in enumerate(model["features"])
    }
    (output / "given.json").write_text(json.dumps({"dense": golden.batch.dense.tolist(), "ids": lists}))
    code = (
        "import json, sys, torch\nfrom predict import scores\nfrom pathlib import Path\n"
        "given = json.loads(Path('given.json').read_text())\n"
        "logits = scores(torch.tensor(given['dense']), given['ids'])\n"
        "assert 'persia_cli' not in sys.modules\n"
        "logits.sum().backward()\n"
        "print(json.dumps(logits.tolist()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=output, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert np.abs(np.array(json.loads(done.stdout)) - golden.logits).max() <= 1e-5
