"""Every network that ships: trained, exported with a proof, served, and compared with what the training code says."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask, binary, tensor
from tests.support.jobs import train
from tests.system.test_resume_networks import SIZE, word
from tests.unit.model.kinds import AUXILIARY, KINDS, SEQUENTIAL, name, regularised

pytestmark = pytest.mark.slow
ROWS, ASKED = SIZE * 16, 40
SEVERAL_LABELS = frozenset({"mmoe", "ple", "esmm"})
BOUND = 5e-6
"""Of a prediction, by rows in float32."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with what every network reads: integers, text, a list of text, and numbers of any size."""
    import pandas as pd

    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(4)
    table = {"f0": draw.integers(0, 30, ROWS), "f1": [f"word {each}" for each in draw.integers(0, 30, ROWS)]}
    table |= {
        "f2": draw.integers(-(2**63), 2**63 - 1, ROWS)[draw.integers(0, 20, ROWS)],
        "d0": draw.exponential(9, ROWS),
    }
    table["clicked"] = [draw.integers(0, 30, draw.integers(0, 5)) for _ in range(ROWS)]
    table["label"] = (draw.random(ROWS) < 0.4).astype(float)
    table["bought"] = table["label"] * (draw.random(ROWS) < 0.5)
    pd.DataFrame(table).to_parquet(folder / "part.parquet")
    return folder


def words(model, data: Path) -> list[str]:
    """The arguments of a job that trains the network on the features that it names."""
    features = ["f0"] if model.kind == "sasrec" else ["f0", "f1"] if model.kind == "two_tower" else ["f0", "f1", "f2"]
    if model.kind in SEQUENTIAL:
        features.append("{name: clicked, table: f0, pooling: none, max_length: 3}")
    given = {key: value for key, value in model.model_dump(exclude_defaults=True, mode="json").items() if key != "kind"}
    labels = "[label, bought]" if model.kind in SEVERAL_LABELS else "[label]"
    return [
        *("conf=base", "dataset=parquet", f"dataset.path='{data}'", f"dataset.labels={labels}"),
        f"dataset.dense={'[]' if model.kind == 'sasrec' else '[{name: d0, transform: log1p}]'}",
        f"dataset.sparse=[{', '.join(features)}]",
        "dataset.split={kind: every, n: 4}",
        *("cluster=embedded", "mode=sync", f"train.batch_size={SIZE}", "train.epochs=3", "train.log_every_steps=1"),
        *("embedding.memory=16MiB", "optimizer=adam", f"model={model.kind}"),
        *(f"model.{key}={word(value)}" for key, value in given.items()),
    ]


def persia(*options: object) -> None:
    done = CliRunner().invoke(app, [str(each) for each in options])
    assert done.exit_code == 0, done.output


def answers(folder: Path, data: Path) -> list[dict[str, list[float]]]:
    """Return a server's predictions for the first samples: by rows, by columns in JSON, and by columns as bytes."""
    predictor = Predictor.open(folder)
    model, server = predictor.description, ServingApp(predictor, ServerSettings(str(folder)))
    rows = pq.read_table(data / "part.parquet").slice(0, ASKED).to_pylist()
    tensors = []
    for each in model.inputs:
        values = [row[each.name] for row in rows]
        if len(each.shape) == 2:
            lengths = [len(value) for value in values]
            tensors.append(tensor(f"{each.name}.lengths", "INT32", lengths))
            values = [value for ids in values for value in ids]
        tensors.append(tensor(each.name, "INT64" if each.datatype == "UINT64" else each.datatype, values))
    names = [each.name for each in model.outputs]
    found = []
    instances = [{each.name: row[each.name] for each in model.inputs} for row in rows]
    as_rows = ask(server, "POST", f"/v1/models/{model.name}:predict", json.dumps({"instances": instances}).encode())
    assert as_rows.status == 200, as_rows
    told = as_rows.json()["predictions"]
    found.append({each: [row[each] if len(names) > 1 else row for row in told] for each in names})
    body, headers = binary(tensors)
    place, in_json = f"/v2/models/{model.name}/infer", json.dumps({"inputs": tensors}).encode()
    for answer in (ask(server, "POST", place, in_json), ask(server, "POST", place, body, headers=headers)):
        assert answer.status == 200, answer
        found.append({each["name"]: each["data"] for each in answer.json()["outputs"]})
    return found


@pytest.mark.parametrize("change", [lambda model: model, regularised], ids=["plain", "regularised"])
@pytest.mark.parametrize("model", [*KINDS, *AUXILIARY], ids=name)
def test_a_served_network_predicts_as_training_does(change, model, data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # else its thread outlives the command
    run = train(words(change(model), data), tmp_path / "run").run_dir
    persia("export", run, "-o", tmp_path / "model", "--verify", data / "part.parquet")
    persia("predict", run, data / "part.parquet", "-o", tmp_path / "scores.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet").slice(0, ASKED)
    by_rows, in_json, in_bytes = answers(tmp_path / "model", data)
    assert by_rows == in_json == in_bytes
    assert len(by_rows) == (2 if model.kind in SEVERAL_LABELS else 1)
    for output, values in by_rows.items():
        expected = scores.column(output).to_numpy()
        assert np.abs(np.array(values) - expected).max() <= BOUND
        assert np.ptp(expected) > 1e-4
