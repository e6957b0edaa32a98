"""Properties of every network: any number of samples and tasks, any grouping of features, bfloat16, its seed."""

from typing import get_args

import pytest
import torch

from persia_cli.config.schema import CustomModel, Model
from persia_cli.errors import ConfigError
from persia_cli.model.batch_norm import BatchNorm
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.batches import batch_of, shape
from tests.unit.model.kinds import KINDS, ONE_LABEL, SEQUENTIAL, name, regularised, shape_for

every = pytest.mark.parametrize("model", KINDS, ids=name)


def test_they_are_all_networks_that_ship():
    settings, *_ = get_args(Model)
    assert {type(model) for model in KINDS} == {*get_args(settings)} - {CustomModel}


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
    given = batch_of(wanted, [[0, 1]], size=64)
    sequences = {name: (values.double(), mask) for name, (values, mask) in given.sequences.items()}
    batch = ModelBatch(given.dense.double(), [group.double() for group in given.groups], given.names, sequences)
    random = torch.Generator().manual_seed(1)

    def moves(trains: bool, bias: torch.Tensor, shift: torch.Tensor) -> bool:
        network.train(trains)
        before, kept = network(batch), bias.clone()
        bias.add_(shift)
        after = network(batch)
        bias.copy_(kept)
        return not torch.allclose(before, after, rtol=0.0, atol=1e-9)

    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=random))
        biases = [(name, bias) for name, bias in network.named_parameters() if name.endswith("bias")]
        for name, bias in biases:
            shift = torch.randn(bias.shape, generator=random)
            assert moves(True, bias, shift) or not moves(False, bias, shift), name


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


def test_the_features_of_a_batch_are_one_graph_for_the_compiler():
    def read(batch):
        return batch.pooled["f1"] * batch.concatenated(wanted.pooled).sum(1, keepdim=True)

    wanted = shape(dims=(4, 4))
    batch = batch_of(wanted, [[1], [0]])
    torch.compiler.reset()
    assert torch.equal(torch.compile(read, backend="eager", fullgraph=True)(batch), read(batch))


@pytest.mark.slow
@every
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
    for batch, logits in zip(batches, expected, strict=True):
        assert compiled(batch).detach().numpy() == pytest.approx(logits.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("model", [model for model in KINDS if model.kind not in SEQUENTIAL], ids=name)
def test_sequences_are_refused_by_name(model):
    features = (FeatureShape("clicks", 4, "none", 10), FeatureShape("f0", 4, "sum"))
    with pytest.raises(ConfigError, match=rf"model.kind={model.kind} .* none for clicks; "):
        build_model(model, InputShape(3, features, 1), seed=0)


@pytest.mark.parametrize(
    "kind", ["dlrm", "fm", "afm", "deepfm", "xdeepfm", "fibinet", "autoint", "masknet", "finalnet"]
)
def test_networks_that_multiply_vectors_refuse_rows_of_another_dim(kind):
    model = next(model for model in KINDS if model.kind == kind)
    with pytest.raises(ConfigError, match=rf"kind={kind} needs rows of model.dim=4 .* f1 \(8\)"):
        build_model(model, shape_for(model, dims=(4, 8)), seed=0)


@pytest.mark.parametrize(
    "kind", ["ffnn", "dcn_v2", "gdcn", "finalmlp", "mmoe", "ple", "esmm", "wide_deep", "din", "dien", "bst"]
)
def test_networks_that_read_rows_side_by_side_take_several_dims(kind):
    model = next(model for model in KINDS if model.kind == kind)
    wanted = shape_for(model, dims=(4, 2, 4))
    assert build_model(model, wanted, seed=0)(batch_of(wanted, [[0, 2], [1]])).shape == (5, 1)


@pytest.mark.parametrize(
    "kind", ["lr", "fm", "afm", "wide_deep", "deepfm", "xdeepfm", "fibinet", "autoint", "masknet", "finalnet"]
)
def test_networks_about_embeddings_refuse_to_have_none(kind):
    model = next(model for model in KINDS if model.kind == kind)
    with pytest.raises(ConfigError, match=f"model.kind={kind} "):
        build_model(model, shape_for(model, dims=()), seed=0)


@pytest.mark.parametrize("kind", ["dlrm", "branches"])
@pytest.mark.parametrize(("dense", "dims", "missing"), [(0, (4,), "dense"), (3, (), "sparse")])
def test_networks_with_a_part_for_each_kind_of_feature_need_both(kind, dense, dims, missing):
    [model] = [model for model in KINDS if model.kind == kind]
    with pytest.raises(ConfigError, match=f"has no {missing} ones"):
        build_model(model, shape_for(model, dense, dims), seed=0)


@pytest.mark.parametrize("kind", sorted({model.kind for model in KINDS} - {"dlrm", "branches"}))
def test_dense_features_may_be_missing(kind):
    model = next(model for model in KINDS if model.kind == kind)
    wanted = shape_for(model, dense=0)
    assert build_model(model, wanted, seed=0)(batch_of(wanted, [[0, 1]])).shape == (5, 1)


@pytest.mark.parametrize("kind", ["ffnn", "dcn_v2", "gdcn", "mmoe", "ple", "esmm"])
def test_sparse_features_may_be_missing(kind):
    model = next(model for model in KINDS if model.kind == kind)
    wanted = shape_for(model, dims=())
    assert build_model(model, wanted, seed=0)(batch_of(wanted, [])).shape == (5, 1)


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


@pytest.mark.parametrize("kind", ["afm", "fibinet"])
def test_networks_of_pairs_refuse_a_single_feature(kind):
    model = next(model for model in KINDS if model.kind == kind)
    with pytest.raises(ConfigError, match=r"only one; use model.kind=lr"):
        build_model(model, shape_for(model, dense=0, dims=(4,)), seed=0)
    assert build_model(model, shape_for(model, dense=1, dims=(4,)), seed=0)
