"""Networks with normalisation, learned activations, dropout, L2 and the focal loss train as plain formulas do."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from persia_cli.config.schema import (
    Afm,
    ByLayer,
    DcnV2,
    DeepFm,
    DenseAdam,
    Din,
    Dlrm,
    Ffnn,
    Focal,
    Gdcn,
    Mmoe,
    WideDeep,
    XDeepFm,
)
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import FeatureShape
from persia_cli.train.loss import Objective
from persia_cli.train.optimizer import dense_optimizer
from tests.unit.model import plain_training as by_hand
from tests.unit.model.batches import shape
from tests.unit.model.plain_training import ALPHA, BETA1, BETA2, EPS, GAMMA, L2, LR, Plain, Style, sequence_mask

DENSE, FIELDS, DIM, STEPS = 3, 3, 5, 3
MODELS: dict[str, Any] = {
    "ffnn": Ffnn(kind="ffnn", dim=DIM, hidden=(8, 6)),
    "wide_deep": WideDeep(kind="wide_deep", dim=DIM, hidden=(8, 6)),
    "deepfm": DeepFm(kind="deepfm", dim=DIM, hidden=(8, 6)),
    "dlrm": Dlrm(kind="dlrm", dim=DIM, bottom=(7,), top=(8, 6)),
    "dcn_v2": DcnV2(kind="dcn_v2", dim=DIM, layers=2, structure="parallel", hidden=(8, 6)),
    "gdcn": Gdcn(kind="gdcn", dim=DIM, layers=2, structure="parallel", hidden=(8, 6)),
    "xdeepfm": XDeepFm(kind="xdeepfm", dim=DIM, maps=(3,), hidden=(8, 6)),
    "din": Din(
        kind="din", dim=DIM, attend={"f0": ("clicked",)}, attention=(4,), attention_activation="prelu", hidden=(8, 6)
    ),
    "mmoe": Mmoe(kind="mmoe", dim=DIM, experts=3, expert=(8, 6), tower=(5,)),
    "afm": Afm(kind="afm", dim=DIM, attention=4),
}
STYLES = [Style("none", "relu", 0.0, 0.0)] + [
    Style(norm, activation, dropout=0.4, embedding_dropout=0.2)
    for norm, activation in product(("none", "batch", "layer"), ("relu", "prelu", "dice"))
]
MARKS = {kind: [pytest.mark.slow] for kind in {*MODELS} - {"wide_deep", "dlrm", "afm"}}


def fits(kind: str, style: Style) -> bool:
    """AFM has no hidden layers; experts normalise a batch in float32, which `test_hidden_layers` is about."""
    over_batch = style.norm == "batch" or style.activation == "dice"
    return style[:2] == ("none", "relu") if kind == "afm" else kind != "mmoe" or not over_batch


def cases(styles: list[Style]) -> list[Any]:
    """Every network with each of the styles that it can have."""
    return [
        pytest.param(kind, style, id="-".join([kind, *map(str, style[:3])]), marks=MARKS.get(kind, ()))
        for kind, style in product(MODELS, styles)
        if fits(kind, style)
    ]


CASES = cases(STYLES)
ODD = [
    *cases([Style("batch", "dice", 0.3, 0.0), Style("layer", "prelu", 0.3, 0.0)]),
    pytest.param("afm", Style("none", "relu", 0.3, 0.0), id="afm"),
]


class Trained:
    """A network as it ships and its plain twin, in float64, on rows of their own for each sample."""

    def __init__(self, kind: str, style: Style, size: int) -> None:
        changes = {key: value for key, value in style._asdict().items() if key in type(MODELS[kind]).model_fields}
        wanted = shape(DENSE, (DIM,) * FIELDS)
        if kind == "din":
            # Its sequences have the rows of the others, which would be dropped once more.
            style, changes["embedding_dropout"] = style._replace(embedding_dropout=0.0), 0.0
            wanted = replace(wanted, features=(*wanted.features, FeatureShape("clicked", DIM, "none", FIELDS - 1)))
        self.reads_sequence = kind == "din"
        self.network = build_model(MODELS[kind].model_copy(update=changes), wanted, 3).double()
        generator = torch.Generator().manual_seed(size)
        self.dense = torch.randn(STEPS, size, DENSE, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 2, (STEPS, size), generator=generator).double()
        self.rows = torch.randn(size, FIELDS, DIM, generator=generator, dtype=torch.float64)
        self.plain = Plain(self.network, style, getattr(by_hand, kind), self.rows)
        self.rows.requires_grad_()
        settings = DenseAdam(kind="adam", lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, l2=ByLayer(**L2))
        self.optimizer = dense_optimizer(settings, self.network)
        self.of_rows = torch.optim.Adam([self.rows], LR, (BETA1, BETA2), EPS)
        self.objective = Objective([Focal(kind="focal", gamma=GAMMA, alpha=ALPHA)])

    def batch(self, dense: torch.Tensor) -> ModelBatch:
        sequence = (self.rows[:, 1:], sequence_mask(len(dense)))
        sequences = {"clicked": sequence} if self.reads_sequence else {}
        return ModelBatch(dense, [self.rows], [[f"f{number}" for number in range(FIELDS)]], sequences)

    def step(self, dense: torch.Tensor, labels: torch.Tensor) -> float:
        losses = self.objective.weighted(self.network(self.batch(dense)), labels.unsqueeze(1), None)
        loss = self.objective.part(losses, float(len(labels)))
        for optimizer in (self.optimizer, self.of_rows):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (self.optimizer, self.of_rows):
            optimizer.step()
        return loss.item()

    def assert_both_train_alike(self) -> None:
        """Both sides draw the same numbers where each has dropout in the same place."""
        for step, (dense, labels) in enumerate(zip(self.dense, self.labels, strict=True)):
            losses = []
            for side in (self, self.plain):
                torch.manual_seed(step)
                losses.append(side.step(dense, labels))
            assert losses[0] == pytest.approx(losses[1], rel=1e-9, abs=1e-12)
            self.assert_same_weights()
        self.network.eval()
        self.plain.training = False
        assert torch.allclose(self.network(self.batch(self.dense[0])), self.plain(self.dense[0]), rtol=1e-7, atol=1e-7)

    def assert_same_weights(self) -> None:
        ours = dict(self.network.named_parameters()) | {"rows": self.rows}
        ours |= {name: value for name, value in self.network.named_buffers() if "running" in name}
        theirs = self.plain.weights | self.plain.means | self.plain.variances
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.allclose(value, theirs[name], rtol=1e-7, atol=1e-7), name


@pytest.mark.parametrize(("kind", "style"), CASES)
def test_every_weight_and_running_figure_agrees_after_each_step(kind: str, style: Style) -> None:
    Trained(kind, style, size=9).assert_both_train_alike()


@pytest.mark.parametrize(("kind", "style"), ODD)
def test_a_batch_of_one_sample_has_no_variance_and_takes_the_running_figures(kind: str, style: Style) -> None:
    Trained(kind, style, size=1).assert_both_train_alike()


@pytest.mark.parametrize(("kind", "style"), ODD)
def test_columns_that_are_the_same_for_all_samples(kind: str, style: Style) -> None:
    trained = Trained(kind, style, size=8)
    trained.dense[:, :, 1] = 3.5
    trained.dense[2] = trained.dense[2, 0]
    trained.assert_both_train_alike()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("kind", "style"), ODD)
def test_logits_of_ten_thousand_give_finite_losses_and_gradients(kind: str, style: Style, sign: float) -> None:
    trained = Trained(kind, style, size=8)
    name, bias = [(name, each) for name, each in trained.network.named_parameters() if name.endswith("bias")][-1]
    with torch.no_grad():
        bias.fill_(sign * 1e4)
    trained.plain.weights[name].fill_(sign * 1e4)
    assert (sign * trained.network.eval()(trained.batch(trained.dense[0])) > 9e3).all()
    trained.network.train()
    trained.assert_both_train_alike()
