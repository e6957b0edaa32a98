"""Small settings of every network that ships."""

import dataclasses

from persia_cli.config import schema
from persia_cli.model.shape import FeatureShape, InputShape
from tests.unit.model.batches import shape

ATTEND = {"f0": ("clicked",)}
GATE = {"hidden": (8,), "first": ("f0",), "second": ()}
KINDS = (
    schema.Ffnn(kind="ffnn", dim=4, hidden=(8, 6)),
    schema.Ffnn(kind="ffnn", dim=4, dense="embed", hidden=(8, 6)),
    schema.Lr(kind="lr", dim=1),
    schema.Fm(kind="fm", dim=4),
    schema.Afm(kind="afm", dim=4, attention=6),
    schema.Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,)),
    schema.WideDeep(kind="wide_deep", dim=4, hidden=(8,)),
    schema.DeepFm(kind="deepfm", dim=4, hidden=(8,)),
    schema.XDeepFm(kind="xdeepfm", dim=4, maps=(5, 3), hidden=(8,)),
    schema.DcnV2(kind="dcn_v2", dim=4, layers=2, hidden=(8,)),
    schema.DcnV2(kind="dcn_v2", dim=4, layers=2, rank=2, hidden=(8,)),
    schema.DcnV2(kind="dcn_v2", dim=4, layers=2, rank=2, experts=2, structure="parallel", hidden=(8,)),
    schema.Gdcn(kind="gdcn", dim=4, layers=2, hidden=(8,)),
    schema.FibiNet(kind="fibinet", dim=4, bilinear="field_all", reduction=0.5, hidden=(8,)),
    schema.MaskNet(kind="masknet", dim=4, blocks=(8, 6)),
    schema.MaskNet(kind="masknet", dim=4, structure="parallel", blocks=(8, 6), hidden=(5,)),
    schema.FinalNet(kind="finalnet", dim=4, first=(8, 6), second=(4,), gate=True),
    schema.FinalNet(kind="finalnet", dim=4, first=(8, 6), activation="relu", norm="none"),
    schema.AutoInt(kind="autoint", dim=4, layers=2, heads=2, width=3, hidden=(8,)),
    schema.FinalMlp(kind="finalmlp", dim=4, first=(8,), second=(6,), heads=2, gate=GATE),
    schema.Din(kind="din", dim=4, attend=ATTEND, attention=(5,), hidden=(8,)),
    schema.Dien(kind="dien", dim=4, attend=ATTEND, hidden=(8,)),
    schema.Bst(kind="bst", dim=4, attend=ATTEND, layers=2, heads=2, inner=6, hidden=(8,)),
    schema.SasRec(kind="sasrec", dim=4, attend=ATTEND, layers=2, heads=2),
    schema.Ligr(kind="ligr", dim=4, attend=ATTEND, layers=2, heads=2, expansion=2),
    schema.Hstu(kind="hstu", dim=4, attend=ATTEND, layers=2, heads=2),
    schema.TwoTower(kind="two_tower", dim=4, user=("f0",), item=("f1",), hidden=(8,), width=6),
    schema.Mmoe(kind="mmoe", dim=4, experts=3, expert=(8,), tower=(5,)),
    schema.Ple(kind="ple", dim=4, layers=2, own=2, shared=2, expert=(8,), tower=(5,)),
    schema.Esmm(kind="esmm", dim=4, hidden=(8,)),
    schema.Branches(kind="branches", dim=4, dense=3, sparse=5, hidden=(8,)),
)

AUXILIARY = (
    schema.Dien(kind="dien", dim=4, attend=ATTEND, hidden=(8,), auxiliary_weight=0.5),
    schema.FinalNet(kind="finalnet", dim=4, first=(8, 6), second=(4,), gate=True, norm="none", teaching=2.0),
)
"""Networks with an auxiliary loss in training."""

SEQUENTIAL = frozenset(model.kind for model in KINDS if hasattr(model, "attend"))
"""Kinds that read a sequence."""
NEXT_ITEM = frozenset({"sasrec", "ligr", "hstu"})
"""Kinds that read a sequence and a candidate, and nothing else."""
ONE_LABEL = NEXT_ITEM | {"two_tower"}
TELLING = {"rank", "experts", "structure", "auxiliary_weight", "teaching"}
"""Settings that distinguish the variants of one kind."""


def name(model) -> str:
    """The id of a test of these settings: the kind, and its distinguishing settings."""
    own = model.model_dump(include=TELLING, exclude_defaults=True)
    if getattr(model, "dense", "") == "embed":
        own["embed"] = True
    return "-".join([model.kind, *own])


def regularised(model):
    """The same network with batch normalisation, dice and dropout wherever it supports them."""
    wanted = {"norm": "batch", "activation": "dice", "dropout": 0.3, "embedding_dropout": 0.2, "attention_dropout": 0.1}
    given = {key: value for key, value in wanted.items() if key in type(model).model_fields}
    return type(model).model_validate(model.model_dump() | given)


def shape_for(model, dense: int = 3, dims: tuple[int, ...] = (4, 4), tasks: int = 1) -> InputShape:
    """The pooled features f0, f1, ... for the network, and a sequence `clicked` if it reads one."""
    match model.kind:
        case "lr":
            dims = tuple(tasks for _ in dims)
        case "sasrec" | "ligr" | "hstu":
            dense, dims = 0, dims[:1]
        case "two_tower":
            dims = dims[:2]
    pooled = shape(dense, dims, tasks)
    if model.kind not in SEQUENTIAL:
        return pooled
    return dataclasses.replace(pooled, features=(*pooled.features, FeatureShape("clicked", dims[0], "none", 3)))
