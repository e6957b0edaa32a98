"""Networks with norms, learned activations, dropout, L2 and a focal loss of smoothed labels train as formulas do."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from persia_cli.config.schema import (
    Afm,
    AutoInt,
    Bst,
    DcnV2,
    DeepFm,
    DenseAdam,
    Dien,
    Din,
    Dlrm,
    Esmm,
    Ffnn,
    FibiNet,
    FinalMlp,
    FinalNet,
    Focal,
    Gdcn,
    MaskNet,
    Mmoe,
    Ple,
    SasRec,
    TwoTower,
    WideDeep,
    XDeepFm,
)
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.outputs import split_output
from persia_cli.model.shape import FeatureShape
from persia_cli.train.loss import Objective
from persia_cli.train.optimizer import dense_optimizer
from tests.unit.model import plain_networks, plain_sequences
from tests.unit.model.batches import shape
from tests.unit.model.plain_sequences import sequence_mask
from tests.unit.model.plain_training import ALPHA, BETA1, BETA2, EPS, GAMMA, L2, LR, SMOOTHING, Plain, Style

DENSE, FIELDS, DIM, STEPS = 3, 3, 6, 3
ATTEND = {"f0": ("clicked",)}
GATE: Any = {"hidden": (5,), "first": ("f0",)}
MODELS: dict[str, Any] = {
    "ffnn": Ffnn(kind="ffnn", dim=DIM, hidden=(8, 6)),
    "wide_deep": WideDeep(kind="wide_deep", dim=DIM, hidden=(8, 6)),
    "deepfm": DeepFm(kind="deepfm", dim=DIM, hidden=(8, 6)),
    "dlrm": Dlrm(kind="dlrm", dim=DIM, bottom=(7,), top=(8, 6)),
    "dcn_v2": DcnV2(kind="dcn_v2", dim=DIM, layers=2, structure="parallel", hidden=(8, 6)),
    "gdcn": Gdcn(kind="gdcn", dim=DIM, layers=2, structure="parallel", hidden=(8, 6)),
    "xdeepfm": XDeepFm(kind="xdeepfm", dim=DIM, maps=(3,), hidden=(8, 6)),
    "afm": Afm(kind="afm", dim=DIM, attention=4),
    "autoint": AutoInt(kind="autoint", dim=DIM, layers=2, heads=2, width=3, hidden=(8, 6)),
    "fibinet": FibiNet(kind="fibinet", dim=DIM, bilinear="field_each", reduction=2.0, hidden=(8, 6)),
    "finalmlp": FinalMlp(kind="finalmlp", dim=DIM, first=(8, 6), second=(7, 6), heads=2, gate=GATE),
    "masknet": MaskNet(kind="masknet", dim=DIM, structure="serial", blocks=(8, 6)),
    "masknet_parallel": MaskNet(kind="masknet", dim=DIM, structure="parallel", blocks=(8, 6), hidden=(5, 4)),
    "finalnet": FinalNet(kind="finalnet", dim=DIM, first=(8, 6), second=(6, 4), gate=True, teaching=0.5),
    "din": Din(kind="din", dim=DIM, attend=ATTEND, attention=(4,), hidden=(8, 6)),
    "dien": Dien(kind="dien", dim=DIM, attend=ATTEND, hidden=(8, 6), auxiliary_weight=0.7),
    "bst": Bst(kind="bst", dim=DIM, attend=ATTEND, layers=2, heads=2, inner=7, attention_dropout=0.3, hidden=(8, 6)),
    "sasrec": SasRec(kind="sasrec", dim=DIM, attend=ATTEND, layers=2, heads=2),
    "two_tower": TwoTower(
        kind="two_tower", dim=DIM, user=("f0", "f1"), item=("f2",), hidden=(8, 6), width=5, temperature=0.2
    ),
    "mmoe": Mmoe(kind="mmoe", dim=DIM, experts=3, expert=(8, 6), tower=(5,)),
    "ple": Ple(kind="ple", dim=DIM, layers=2, own=2, shared=1, expert=(8, 6), tower=(5,)),
    "esmm": Esmm(kind="esmm", dim=DIM, hidden=(8, 6)),
}
PLAIN = vars(plain_networks) | vars(plain_sequences)
TASKS = {"ple": 2, "esmm": 2}
WITHOUT_BIAS = {"sasrec", "two_tower"}
"""Products of two vectors."""
STYLES = [Style("none", "relu", 0.0, 0.0)] + [
    Style(norm, activation, dropout=0.4, embedding_dropout=0.2)
    for norm, activation in product(("none", "batch", "layer"), ("relu", "prelu", "dice"))
]
FAST = {"wide_deep", "dlrm", "afm"}
"""Networks that the fast suite trains in all styles."""
FAST_IN_ONE = {"autoint", "fibinet", "finalmlp", "masknet", "finalnet", "two_tower", "ple", "esmm"}
"""Networks that it trains in one style."""
ONE = Style("batch", "dice", dropout=0.4, embedding_dropout=0.2)


def fits(kind: str, style: Style) -> bool:
    """AFM and SASRec have no hidden layers with a style."""
    return style[:2] == ("none", "relu") or kind not in ("afm", "sasrec")


def marks(kind: str, style: Style) -> list[pytest.MarkDecorator]:
    """Combinations outside of the fast suite."""
    return [] if kind in FAST or (kind in FAST_IN_ONE and style == ONE) else [pytest.mark.slow]


def cases(styles: list[Style]) -> list[Any]:
    """Every network with each of the styles that it can have."""
    return [
        pytest.param(kind, style, id="-".join([kind, *map(str, style[:3])]), marks=marks(kind, style))
        for kind, style in product(MODELS, styles)
        if fits(kind, style)
    ]


CASES = cases(STYLES)
ODD = [
    *cases([Style("batch", "dice", 0.3, 0.0), Style("layer", "prelu", 0.3, 0.0)]),
    pytest.param("afm", Style("none", "relu", 0.3, 0.0), id="afm"),
]


class Trained:
    """A network that ships and its plain twin, in float64, on separate rows for each sample."""

    def __init__(self, kind: str, style: Style, size: int) -> None:
        changes = {key: value for key, value in style._asdict().items() if key in type(MODELS[kind]).model_fields}
        tasks, columns = TASKS.get(kind, 1), 0 if kind == "sasrec" else DENSE
        wanted = shape(columns, (DIM,) * (1 if kind == "sasrec" else FIELDS), tasks)
        self.names = [feature.name for feature in wanted.features]
        self.reads_sequence = hasattr(MODELS[kind], "attend")
        if self.reads_sequence:
            # Its elements are the rows of the other features.
            wanted = replace(wanted, features=(*wanted.features, FeatureShape("clicked", DIM, "none", FIELDS - 1)))
        self.network = build_model(MODELS[kind].model_copy(update=changes), wanted, 3).double()
        generator = torch.Generator().manual_seed(size)
        self.dense = torch.randn(STEPS, size, columns, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, 2, (STEPS, size, tasks), generator=generator).double()
        self.rows = torch.randn(size, FIELDS, DIM, generator=generator, dtype=torch.float64)
        self.plain = Plain(self.network, style, PLAIN[kind], self.rows)
        self.rows.requires_grad_()
        settings = DenseAdam(kind="adam", lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, l2=L2)
        self.optimizer = dense_optimizer(settings, self.network)
        self.of_rows = torch.optim.Adam([self.rows], LR, (BETA1, BETA2), EPS)
        self.objective = Objective([Focal(kind="focal", gamma=GAMMA, alpha=ALPHA, smoothing=SMOOTHING)] * tasks)

    def batch(self, dense: torch.Tensor) -> ModelBatch:
        sequence = (self.rows[:, 1:], sequence_mask(len(dense)))
        sequences = {"clicked": sequence} if self.reads_sequence else {}
        return ModelBatch(dense, [self.rows[:, : len(self.names)]], [self.names], sequences)

    def step(self, dense: torch.Tensor, labels: torch.Tensor) -> float:
        logits, auxiliary = split_output(self.network(self.batch(dense)))
        losses = self.objective.weighted(logits, labels, None)
        losses = losses if auxiliary is None else losses + auxiliary
        loss = self.objective.part(losses, [float(len(labels))] * labels.shape[1])
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
        self.assert_close(self.network(self.batch(self.dense[0])), self.plain(self.dense[0]), "logits")

    def assert_same_weights(self) -> None:
        ours = dict(self.network.named_parameters()) | {"rows": self.rows}
        ours |= {name: value for name, value in self.network.named_buffers() if "running" in name}
        theirs = self.plain.weights | self.plain.means | self.plain.variances
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            self.assert_close(value, theirs[name], name)

    def assert_close(self, one: torch.Tensor, other: torch.Tensor, what: str) -> None:
        assert torch.allclose(one, other, rtol=1e-7, atol=1e-7), what


@pytest.mark.parametrize(("kind", "style"), CASES)
def test_every_weight_and_running_statistic_agrees_after_each_step(kind: str, style: Style) -> None:
    Trained(kind, style, size=9).assert_both_train_alike()


@pytest.mark.parametrize(("kind", "style"), ODD)
def test_a_batch_of_one_sample_uses_running_statistics(kind: str, style: Style) -> None:
    Trained(kind, style, size=1).assert_both_train_alike()


@pytest.mark.parametrize(("kind", "style"), ODD)
def test_columns_that_are_the_same_for_all_samples(kind: str, style: Style) -> None:
    trained = Trained(kind, style, size=8)
    trained.dense[:, :, 1] = 3.5
    trained.dense[2] = trained.dense[2, 0]
    trained.assert_both_train_alike()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("kind", "style"), [case for case in ODD if case.values[0] not in WITHOUT_BIAS])
def test_logits_of_ten_thousand_give_finite_losses_and_gradients(kind: str, style: Style, sign: float) -> None:
    trained = Trained(kind, style, size=8)
    name, bias = [(name, each) for name, each in trained.network.named_parameters() if name.endswith("bias")][-1]
    with torch.no_grad():
        bias.fill_(sign * 3e4)
    trained.plain.weights[name].fill_(sign * 3e4)
    assert (sign * trained.network.eval()(trained.batch(trained.dense[0])) > 9e3).all()
    trained.network.train()
    trained.assert_both_train_alike()
