"""Small settings of every network that ships."""

import dataclasses

from persia_cli.config.schema import (
    AutoInt,
    Branches,
    DcnV2,
    DeepFm,
    Din,
    Dlrm,
    Ffnn,
    FinalMlp,
    Mmoe,
    WideDeep,
    XDeepFm,
)
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.batches import shape

GATE = {"hidden": (8,), "first": ("f0",), "second": ()}
KINDS = (
    Ffnn(kind="ffnn", dim=4, hidden=(8, 6)),
    Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,)),
    WideDeep(kind="wide_deep", dim=4, hidden=(8,)),
    DeepFm(kind="deepfm", dim=4, hidden=(8,)),
    XDeepFm(kind="xdeepfm", dim=4, maps=(5, 3), hidden=(8,)),
    DcnV2(kind="dcn_v2", dim=4, layers=2, hidden=(8,)),
    DcnV2(kind="dcn_v2", dim=4, layers=2, rank=2, hidden=(8,)),
    DcnV2(kind="dcn_v2", dim=4, layers=2, rank=2, experts=2, structure="parallel", hidden=(8,)),
    AutoInt(kind="autoint", dim=4, layers=2, heads=2, width=3, hidden=(8,)),
    FinalMlp(kind="finalmlp", dim=4, first=(8,), second=(6,), heads=2, gate=GATE),
    Din(kind="din", dim=4, attend={"f0": ("clicked",)}, attention=(5,), hidden=(8,)),
    Mmoe(kind="mmoe", dim=4, experts=3, expert=(8,), tower=(5,)),
    Branches(kind="branches", dim=4, dense=3, sparse=5, hidden=(8,)),
)


def name(model) -> str:
    """What a test of these settings is called."""
    own = model.model_dump(include={"rank", "experts"}, exclude_none=True) if model.kind == "dcn_v2" else ()
    return "-".join([model.kind, *own])


def shape_for(model, dense: int = 3, dims: tuple[int, ...] = (4, 4), tasks: int = 1) -> InputShape:
    """The pooled features f0, f1, ..., and for `din` a sequence `clicked` beside them."""
    pooled = shape(dense, dims, tasks)
    if model.kind != "din":
        return pooled
    return dataclasses.replace(pooled, features=(*pooled.features, FeatureShape("clicked", dims[0], "none", 3)))
