"""The inputs of networks, and features by name."""

import pytest
import torch

from persia_cli.config.schema import Din, FinalMlp
from persia_cli.errors import ConfigError
from persia_cli.model.build import build_model
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.batches import batch_of, shape

CLICKED = FeatureShape("clicked", 4, "none", 3, table=7)
FEATURES = (FeatureShape("item", 4, "sum", table=7), FeatureShape("user", 4, "mean", table=8), CLICKED)


def test_batches_name_their_pooled_vectors():
    wanted = shape(dims=(4, 2, 4))
    batch = batch_of(wanted, [[0, 2], [1]])
    assert list(batch.pooled) == ["f0", "f2", "f1"]
    assert torch.equal(batch.pooled["f2"], batch.groups[0][:, 1])
    assert batch.size == 5


@pytest.mark.parametrize(
    ("attend", "sentence"),
    [
        ({"itme": ["clicked"]}, "model.attend=itme: needs a sparse feature .* did you mean item?"),
        ({"item": ["clikced"]}, "model.attend.item=clikced: needs a sparse feature .* did you mean clicked?"),
        ({"item": ["user"]}, "model.attend.item=user: .* pooling none .*, which this is not; there are clicked"),
        ({"clicked": ["clicked"]}, "model.attend=clicked: .* there are item, user"),
        ({"user": ["clicked"]}, "model.attend.user: clicked does not read the table of user"),
    ],
)
def test_targets_and_sequences_of_din_fit_each_other(attend, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_model(Din(kind="din", dim=4, attend=attend, attention=(3,), hidden=(5,)), InputShape(2, FEATURES, 1), 0)


def test_din_refuses_a_sequence_that_nothing_attends_to():
    features = (*FEATURES, FeatureShape("bought", 4, "none", 3, table=7))
    model = Din(kind="din", dim=4, attend={"item": ["clicked"]}, attention=(3,), hidden=(5,))
    with pytest.raises(ConfigError, match="no target attends to the sequence bought"):
        build_model(model, InputShape(2, features, 1), 0)


def test_gates_of_finalmlp_open_by_features_that_exist():
    gate = {"hidden": (3,), "first": ("f0",), "second": ("f7",)}
    model = FinalMlp(kind="finalmlp", dim=4, first=(8,), second=(6,), heads=2, gate=gate)
    with pytest.raises(ConfigError, match=r"model.gate.second=f7: .* there are f0, f1"):
        build_model(model, shape(), 0)
