"""An exported model predicts the same as the training code, without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.config.record import read_run
from persia_cli.data.read.source import open_source
from persia_cli.engines.job import JobResult
from persia_cli.errors import CheckpointError, PersiaError, UserError
from persia_cli.main import app
from persia_cli.serving.fields import read_fields
from persia_cli.serving.golden import read_golden
from persia_cli.serving.predictor import Predictor
from tests.support.jobs import train
from tests.support.lists import lists_job

LABELS = ("click", "buy")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the data of the trained run."""
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def saved(folder: Path) -> JobResult:
    """A trained run of two labels, with lists, sequences, shared tables and three kinds of rows."""
    return train([*lists_job(folder), "cluster.embedding_servers=2"], folder / "run")


def export(run: Path, output: Path, *options: str) -> Result:
    """Run `persia export`."""
    return CliRunner().invoke(app, ["export", str(run), "-o", str(output), *options])


@pytest.fixture(scope="module")
def exported(folder: Path, saved: JobResult) -> Path:
    """The run's model, exported."""
    output = folder / "model"
    result = export(saved.run_dir, output, "--verify", str(folder / "eval.parquet"))
    assert result.exit_code == 0, result.output
    assert "click: max |Δp|" in result.output
    return output


def test_an_exported_model_has_the_scores_of_persia_predict(folder: Path, saved: JobResult, exported: Path) -> None:
    scores = folder / "scores.parquet"
    done = CliRunner().invoke(app, ["predict", str(saved.run_dir), str(folder / "eval.parquet"), "-o", str(scores)])
    assert done.exit_code == 0, done.output
    expected = pq.read_table(scores)
    samples = pq.read_table(folder / "eval.parquet")
    fields, predictor = read_fields(exported), Predictor.open(exported, check=True)
    batch = fields.batch({name: samples.column(name) for name, _, _ in fields.inputs()})
    found = predictor.predict(batch)
    for task, label in enumerate(LABELS):
        theirs = expected.column(f"{label}_probability").to_numpy()
        assert np.abs(found.values[:, task] - theirs).max() <= 5e-6
    assert found.missing.sum() > 0


def test_fields_of_a_request_become_the_ids_of_training(saved: JobResult, folder: Path, exported: Path) -> None:
    source = open_source(read_run(saved.run_dir / "config.yaml").dataset, "eval", 0)
    expected = source.read(0, 0, source.rows)
    source.close()
    samples, fields = pq.read_table(folder / "eval.parquet"), read_fields(exported)
    names = [name for name, _, _ in fields.inputs()]
    for columns in (
        {name: samples.column(name) for name in names},
        {name: samples.column(name).to_pylist() for name in names},
    ):
        batch = fields.batch(columns)
        np.testing.assert_array_equal(batch.ids, expected.ids)
        np.testing.assert_array_equal(batch.offsets, expected.offsets)
        np.testing.assert_array_equal(batch.dense, expected.dense)


def test_golden_samples_have_the_scores_of_the_model(exported: Path) -> None:
    predictor = Predictor.open(exported)
    golden = read_golden(exported, predictor.description)
    assert golden.batch.size == 50
    found = predictor.predict(golden.batch)
    assert np.abs(found.logits - golden.logits).max() <= 1e-5
    one = predictor.predict(golden.batch.rows(7, 8))
    np.testing.assert_allclose(one.logits[0], found.logits[7], atol=1e-6)
    assert predictor.predict(golden.batch.rows(0, 0)).logits.shape == (0, 2)


def test_one_value_stands_for_all_samples(exported: Path, folder: Path) -> None:
    samples, fields = pq.read_table(folder / "eval.parquet").to_pydict(), read_fields(exported)
    names = [name for name, _, _ in fields.inputs()]
    columns = {name: samples[name] for name in names}
    for name in ("user", "history", "d0"):
        columns[name] = columns[name][3:4]
    whole = {name: values * 50 if len(values) == 1 else values for name, values in columns.items()}
    one, other = fields.batch(columns), fields.batch(whole)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    np.testing.assert_array_equal(one.dense, other.dense)


def test_an_id_that_was_never_seen_begins_as_in_training(exported: Path) -> None:
    predictor = Predictor.open(exported, missing="init")
    golden = read_golden(exported, predictor.description)
    zeros = Predictor.open(exported).predict(golden.batch)
    begins = predictor.predict(golden.batch)
    np.testing.assert_array_equal(zeros.missing, begins.missing)
    assert np.abs(zeros.logits - begins.logits).max() > 1e-6


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


@pytest.mark.parametrize("form", ["bfloat16", "float16", "int8", "int4"])
def test_rows_of_fewer_bits_give_nearly_the_same(folder: Path, saved: JobResult, exported: Path, form: str) -> None:
    output = folder / form
    result = export(saved.run_dir, output, "--rows", form)
    assert result.exit_code == 0, result.output
    golden = read_golden(exported, Predictor.open(exported).description)
    difference = np.abs(Predictor.open(output).predict(golden.batch).values - _probabilities(golden.logits)).max()
    assert 0 < difference < {"bfloat16": 1e-2, "float16": 1e-3, "int8": 1e-2, "int4": 0.1}[form]


def test_a_damaged_folder_is_refused(folder: Path, saved: JobResult, exported: Path) -> None:
    import shutil

    output = folder / "damaged"
    shutil.copytree(exported, output)
    fields = output / "features.yaml"
    text = fields.read_text()
    fields.write_text(text.replace("e", "a", 1))
    with pytest.raises(CheckpointError, match=r"features\.yaml is not the file that was exported"):
        Predictor.open(output)
    fields.write_text(text)
    values = output / "rows" / "0.values"
    content = bytearray(values.read_bytes())
    content[0] ^= 1
    values.write_bytes(content)
    Predictor.open(output)
    with pytest.raises(CheckpointError, match=r"0\.values is not the file that was exported"):
        Predictor.open(output, check=True)
    values.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"0\.values is not the file that was exported"):
        Predictor.open(output)
    values.unlink()
    with pytest.raises(CheckpointError, match=r"0\.values is missing"):
        Predictor.open(output)
    description = json.loads((output / "model.json").read_text())
    (output / "model.json").write_text(json.dumps(description | {"format_version": 99}))
    with pytest.raises(CheckpointError, match="has format version 99"):
        Predictor.open(output)
    with pytest.raises(UserError, match="is no exported model"):
        Predictor.open(saved.run_dir)


def test_an_export_that_fails_its_proof_leaves_nothing(
    folder: Path, saved: JobResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    from persia_cli.export import verification

    monkeypatch.setitem(verification.DIFFERENCE, "int4", 1e-9)
    result = export(saved.run_dir, folder / "bad", "--rows", "int4", "--verify", str(folder / "eval.parquet"))
    assert isinstance(result.exception, PersiaError)
    assert "is allowed for rows in int4" in str(result.exception)
    assert [path.name for path in folder.iterdir() if path.name.startswith("bad")] == []


def test_a_run_with_missing_data_is_exported_with_samples_of_others(folder: Path, saved: JobResult) -> None:
    source, gone = folder / "eval.parquet", folder / "other.parquet"
    source.rename(gone)
    try:
        refused = export(saved.run_dir, folder / "alone")
        assert isinstance(refused.exception, UserError)
        assert "name files that have some by --verify" in str(refused.exception)
        done = export(saved.run_dir, folder / "alone", "--verify", str(gone))
        assert done.exit_code == 0, done.output
    finally:
        gone.rename(source)


def test_a_folder_is_replaced_only_on_request(folder: Path, saved: JobResult, exported: Path) -> None:
    again = export(saved.run_dir, exported)
    assert isinstance(again.exception, UserError)
    assert "exists already" in str(again.exception)
    assert export(saved.run_dir, exported, "--overwrite", "--name", "shop").exit_code == 0
    assert Predictor.open(exported, check=True).description.name == "shop"
    assert [path.name for path in folder.iterdir() if path.name.startswith("model.")] == []


def test_plain_torch_has_the_same_scores_without_persia(folder: Path, saved: JobResult, exported: Path) -> None:
    output = folder / "plain"
    result = export(saved.run_dir, output, "--format", "torch")
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


def _probabilities(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))
