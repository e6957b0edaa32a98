"""Small settings of every network that ships."""

import dataclasses

from persia_cli.config.schema import (
    Afm,
    AutoInt,
    Branches,
    DcnV2,
    DeepFm,
    Din,
    Dlrm,
    Ffnn,
    FibiNet,
    FinalMlp,
    FinalNet,
    Fm,
    Gdcn,
    Lr,
    MaskNet,
    Mmoe,
    WideDeep,
    XDeepFm,
)
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.batches import shape

GATE = {"hidden": (8,), "first": ("f0",), "second": ()}
KINDS = (
    Ffnn(kind="ffnn", dim=4, hidden=(8, 6)),
    Ffnn(kind="ffnn", dim=4, dense="embed", hidden=(8, 6)),
    Lr(kind="lr", dim=1),
    Fm(kind="fm", dim=4),
    Afm(kind="afm", dim=4, attention=6),
    Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,)),
    WideDeep(kind="wide_deep", dim=4, hidden=(8,)),
    DeepFm(kind="deepfm", dim=4, hidden=(8,)),
    XDeepFm(kind="xdeepfm", dim=4, maps=(5, 3), hidden=(8,)),
    DcnV2(kind="dcn_v2", dim=4, layers=2, hidden=(8,)),
    DcnV2(kind="dcn_v2", dim=4, layers=2, rank=2, hidden=(8,)),
    DcnV2(kind="dcn_v2", dim=4, layers=2, rank=2, experts=2, structure="parallel", hidden=(8,)),
    Gdcn(kind="gdcn", dim=4, layers=2, hidden=(8,)),
    FibiNet(kind="fibinet", dim=4, bilinear="field_all", reduction=0.5, hidden=(8,)),
    MaskNet(kind="masknet", dim=4, blocks=(8, 6)),
    MaskNet(kind="masknet", dim=4, structure="parallel", blocks=(8, 6), hidden=(5,)),
    FinalNet(kind="finalnet", dim=4, first=(8, 6), second=(4,), gate=True),
    FinalNet(kind="finalnet", dim=4, first=(8, 6), residual="sum", activation="relu", norm="none"),
    AutoInt(kind="autoint", dim=4, layers=2, heads=2, width=3, hidden=(8,)),
    FinalMlp(kind="finalmlp", dim=4, first=(8,), second=(6,), heads=2, gate=GATE),
    Din(kind="din", dim=4, attend={"f0": ("clicked",)}, attention=(5,), hidden=(8,)),
    Mmoe(kind="mmoe", dim=4, experts=3, expert=(8,), tower=(5,)),
    Branches(kind="branches", dim=4, dense=3, sparse=5, hidden=(8,)),
)


def name(model) -> str:
    """What a test of these settings is called: the kind, and what tells it from others of its kind."""
    own = model.model_dump(include={"rank", "experts", "structure", "residual"}, exclude_defaults=True)
    if getattr(model, "dense", "") == "embed":
        own["embed"] = True
    return "-".join([model.kind, *own])


def shape_for(model, dense: int = 3, dims: tuple[int, ...] = (4, 4), tasks: int = 1) -> InputShape:
    """The pooled features f0, f1, ..., for `din` a sequence `clicked` beside them; rows of `lr` are weights."""
    pooled = shape(dense, tuple(tasks for _ in dims) if model.kind == "lr" else dims, tasks)
    if model.kind != "din":
        return pooled
    return dataclasses.replace(pooled, features=(*pooled.features, FeatureShape("clicked", dims[0], "none", 3)))
