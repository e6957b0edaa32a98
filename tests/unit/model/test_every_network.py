"""Properties of every network: any number of samples and tasks, any grouping of features, bfloat16, its seed."""

from typing import get_args

import pytest
import torch
import yaml
from pydantic import TypeAdapter

from persia_cli.config.schema import CustomModel, Din, FinalMlp, Model
from persia_cli.errors import ConfigError
from persia_cli.model.batch_norm import BatchNorm
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.shipped import shipped
from tests.unit.model.batches import batch_of, shape
from tests.unit.model.kinds import AUXILIARY, KINDS, ONE_LABEL, SEQUENTIAL, name, regularised, shape_for

every = pytest.mark.parametrize("model", KINDS, ids=name)


def test_they_are_all_networks_that_ship():
    settings, *_ = get_args(Model)
    assert {type(model) for model in KINDS} == {*get_args(settings)} - {CustomModel}


@pytest.mark.parametrize("path", sorted((shipped("conf") / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_group_can_be_built_and_run(path):
    values = yaml.safe_load(path.read_text())
    if values["kind"] == "custom":  # the user gives the rest
        return
    own = {"attend": {"f0": ["clicked"]}, "user": ["f0"], "item": ["f1"]}
    values |= {key: own[key] for key in own if key in values}
    model = TypeAdapter(Model).validate_python(values)
    wanted = shape_for(model, dims=(model.dim, model.dim))
    assert build_model(model, wanted, seed=0).eval()(batch_of(wanted, [[0, 1]])).shape == (5, 1)


@every
def test_a_batch_without_samples_gives_no_logits_and_zero_gradients(model):
    wanted = shape_for(model)
    network = build_model(model, wanted, seed=0)
    logits = network(batch_of(wanted, [[0, 1]], size=0))
    assert logits.shape == (0, 1)
    logits.sum().backward()
    assert all(not parameter.grad.any() for parameter in network.parameters())


@every
@pytest.mark.parametrize("tasks", [1, 3])
def test_every_weight_takes_part_for_every_number_of_tasks(model, tasks):
    wanted = shape_for(model, tasks=tasks)
    if tasks > 1 and model.kind in ONE_LABEL:
        with pytest.raises(ConfigError, match=f"kind={model.kind} .* 3 labels"):
            build_model(model, wanted, seed=0)
        return
    network = build_model(model, wanted, seed=0)
    logits = network(batch_of(wanted, [[0, 1]], size=64))
    assert logits.shape == (64, tasks)
    (logits * torch.arange(1.0, tasks + 1)).square().sum().backward()
    assert all(parameter.grad.any() for parameter in network.parameters())


@every
def test_logits_do_not_depend_on_how_features_are_grouped(model):
    wanted = shape_for(model, dims=(4, 4, 4))
    network = build_model(model, wanted, seed=1)
    one, *others = [network(batch_of(wanted, groups)) for groups in ([[0, 1, 2]], [[2, 0], [1]], [[1], [2], [0]])]
    assert all(torch.equal(one, other) for other in others)


@every
def test_all_that_a_network_reads_goes_with_it_to_another_device(model):
    wanted = shape_for(model)
    network = build_model(model, wanted, seed=0).to("meta")
    given = batch_of(wanted, [[0, 1]], size=6)
    sequences = {name: (values.to("meta"), mask.to("meta")) for name, (values, mask) in given.sequences.items()}
    batch = ModelBatch(given.dense.to("meta"), [group.to("meta") for group in given.groups], given.names, sequences)
    logits = network(batch)
    logits.sum().backward()
    assert logits.is_meta
    assert all(parameter.grad.is_meta for parameter in network.parameters())


@every
def test_weights_follow_from_the_seed_alone(model):
    state = torch.get_rng_state()
    first, again, other = (build_model(model, shape_for(model), seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@every
def test_no_bias_is_lost_in_batch_normalisation(model):
    """A bias that moves the output of evaluations, but none of training, learns from rounding noise."""
    wanted = shape_for(model)
    if "norm" in type(model).model_fields:
        model = type(model).model_validate(model.model_dump() | {"norm": "batch"})
        assert any(isinstance(part, BatchNorm) for part in build_model(model, wanted, seed=0).modules())
    network = build_model(model, wanted, seed=0).double()
    given = batch_of(wanted, [[0, 1]], size=16)
    sequences = {name: (values.double(), mask) for name, (values, mask) in given.sequences.items()}
    batch = ModelBatch(given.dense.double(), [group.double() for group in given.groups], given.names, sequences)
    random = torch.Generator().manual_seed(1)

    def output(trains: bool) -> torch.Tensor:
        network.train(trains)
        return network(batch)

    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=random))
        trained = output(True)
        for name, bias in network.named_parameters():
            kept = bias.clone()
            if name.endswith("bias"):
                bias.add_(torch.randn(bias.shape, generator=random))
                if torch.allclose(output(True), trained, rtol=0.0, atol=1e-9):
                    evaluated = output(False)
                    bias.copy_(kept)
                    assert torch.allclose(output(False), evaluated, rtol=0.0, atol=1e-9), name
                bias.copy_(kept)


@every
def test_bfloat16_is_near_float32(model):
    wanted = shape_for(model)
    network = build_model(model, wanted, seed=0)
    batch = batch_of(wanted, [[0, 1]], size=50)
    exact = network(batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = network(batch)
    rounded.float().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert (rounded.float() - exact).abs().max() < 0.05 * (1.0 + exact.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("model", [*KINDS, *AUXILIARY], ids=name)
@pytest.mark.parametrize("groups", [[[0, 1]], [[1], [0]]], ids=["one-group", "two-groups"])
@pytest.mark.parametrize("style", [lambda model: model, regularised], ids=["plain", "regularised"])
def test_it_is_one_graph_for_the_compiler(model, style, groups):
    wanted = shape_for(model)
    network = build_model(style(model), wanted, seed=0)
    batches = [batch_of(wanted, groups, size=size) for size in (5, 8)]
    if style is regularised:
        # Dropout draws random numbers, so only its graph in training is compared, and then the output of evaluation.
        torch.compiler.reset()
        torch.compile(network, backend="eager", fullgraph=True)(batches[0])
        network.eval()
    expected = [network(batch) for batch in batches]
    # Without code generation, since only the graph is tested: tracing never has to fall back to Python.
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    for batch, output in zip(batches, expected, strict=True):
        torch.testing.assert_close(compiled(batch), output)


@pytest.mark.parametrize("model", [model for model in KINDS if model.kind not in SEQUENTIAL], ids=name)
def test_sequences_are_refused_by_name(model):
    features = (FeatureShape("clicks", 4, "none", 10), FeatureShape("f0", 4, "sum"))
    with pytest.raises(ConfigError, match=rf"model.kind={model.kind} .* none for clicks; "):
        build_model(model, InputShape(3, features, 1), seed=0)


OF_VECTORS = {"fm", "afm", "deepfm", "xdeepfm", "fibinet", "autoint", "masknet", "finalnet"}
"""Networks that multiply vectors of features, and need at least one."""
TWO_PARTS = {"dlrm", "branches"}
"""Networks with a part for each kind of feature."""
SIDE_BY_SIDE = {"ffnn", "dcn_v2", "gdcn", "mmoe", "ple", "esmm"}
"""Networks that read rows of any dim side by side, and may have none."""


def of_kind(kind):
    return next(model for model in KINDS if model.kind == kind)


@pytest.mark.parametrize(
    ("kinds", "dense", "dims", "sentence"),
    [
        (OF_VECTORS | {"dlrm"}, 3, (4, 8), r" needs rows of model.dim=4 .* f1 \(8\)"),
        (OF_VECTORS | {"lr", "wide_deep"}, 3, (), ""),
        (TWO_PARTS, 0, (4,), ".* has no dense ones"),
        (TWO_PARTS, 3, (), ".* has no sparse ones"),
        ({"afm", "fibinet"}, 0, (4,), ".* only one; use model.kind=lr"),
    ],
)
def test_features_that_a_network_cannot_use_are_refused(kinds, dense, dims, sentence):
    for model in map(of_kind, sorted(kinds)):
        with pytest.raises(ConfigError, match=rf"model.kind={model.kind}{sentence}"):
            build_model(model, shape_for(model, dense, dims), seed=0)


@pytest.mark.parametrize(
    ("kinds", "dense", "dims"),
    [
        (SIDE_BY_SIDE | {"finalmlp", "wide_deep", "din", "dien", "bst"}, 3, (4, 2, 4)),
        ({model.kind for model in KINDS} - TWO_PARTS, 0, (4, 4)),
        (SIDE_BY_SIDE, 3, ()),
        ({"afm", "fibinet"}, 1, (4,)),
    ],
)
def test_features_that_a_network_can_use_are_taken(kinds, dense, dims):
    for model in map(of_kind, sorted(kinds)):
        wanted = shape_for(model, dense, dims)
        assert build_model(model, wanted, seed=0)(batch_of(wanted, [[0, 2], [1]])).shape == (5, 1)


@pytest.mark.parametrize(
    ("kind", "least"), [("wide_deep", 4), ("fm", 5), ("afm", 5), ("deepfm", 5), ("xdeepfm", 5), ("fibinet", 5)]
)
def test_first_order_weights_need_a_column_for_each_label(kind, least):
    [model] = [model for model in KINDS if model.kind == kind]
    build_model(model, shape_for(model, tasks=3), seed=0)
    narrow = model.model_copy(update={"dim": 3})
    with pytest.raises(ConfigError, match=rf"at least {least} .* f0 \(3\), f1 \(3\)"):
        build_model(narrow, shape_for(narrow, dims=(3, 3), tasks=4 if kind == "wide_deep" else least - 1), seed=0)


def test_rows_of_logistic_regression_are_one_weight_for_each_label():
    model = next(model for model in KINDS if model.kind == "lr")
    features = (FeatureShape("f0", 3, "sum"), FeatureShape("f1", 4, "sum"))
    with pytest.raises(ConfigError, match=r"f1 \(4\); set model.dim=3"):
        build_model(model, InputShape(2, features, 3), seed=0)


CLICKED = FeatureShape("clicked", 4, "none", 3, table=7)
FEATURES = (FeatureShape("item", 4, "sum", table=7), FeatureShape("user", 4, "mean", table=8), CLICKED)


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
