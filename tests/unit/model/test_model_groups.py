"""The shipped groups conf/model and conf/optimizer: each is valid, and each network can be built."""

from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from persia_cli.config.expected import kinds
from persia_cli.config.schema import Model, OptimizerPair
from persia_cli.model.build import build_model
from persia_cli.shipped import shipped
from tests.unit.model.batches import batch_of
from tests.unit.model.kinds import KINDS, shape_for

MODELS = sorted(path for path in (shipped("conf") / "model").glob("*.yaml") if path.stem != "custom")
"""Of `custom`, the user gives the rest."""
OPTIMIZERS = sorted((shipped("conf") / "optimizer").glob("*.yaml"))


def test_the_groups_are_all_there():
    assert [path.stem for path in MODELS] == [
        "afm",
        "autoint",
        "branches",
        "bst",
        "dcn_v2",
        "dcn_v2_mix",
        "deepfm",
        "dien",
        "din",
        "din_taobao",
        "dlrm",
        "esmm",
        "ffnn",
        "ffnn_paper",
        "ffnn_small",
        "fibinet",
        "finalmlp",
        "finalnet",
        "fm",
        "gdcn",
        "lr",
        "masknet",
        "mmoe",
        "ple",
        "sasrec",
        "two_tower",
        "wide_deep",
        "xdeepfm",
    ]
    assert [path.stem for path in OPTIMIZERS] == [
        "adagrad",
        "adam",
        "adamw",
        "adult_income_original",
        "ftrl",
        "mixed",
        "rowwise_adagrad",
        "rowwise_adam",
        "sgd",
    ]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_model_can_be_built_and_run(path: Path):
    values = yaml.safe_load(path.read_text())
    own = {"attend": {"f0": ["clicked"]}, "user": ["f0"], "item": ["f1"]}
    values |= {key: own[key] for key in own if key in values}
    model = TypeAdapter(Model).validate_python(values)
    wanted = shape_for(model, dims=(model.dim, model.dim))
    assert build_model(model, wanted, seed=0).eval()(batch_of(wanted, [[0, 1]])).shape == (5, 1)


def test_every_kind_is_among_the_small_ones_that_tests_use():
    assert {*kinds(Model)} == {"custom", *(model.kind for model in KINDS)}


@pytest.mark.parametrize("path", OPTIMIZERS, ids=lambda path: path.stem)
def test_an_optimizer_pair_is_valid(path: Path):
    OptimizerPair.model_validate(yaml.safe_load(path.read_text()))
