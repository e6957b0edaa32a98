"""Networks of FuxiCTR's own layers; its package has the layers, and only its repository the networks."""

from collections.abc import Callable
from typing import Any

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import (
    BilinearInteractionV2,
    CompressedInteractionNet,
    CrossNetV2,
    FactorizationMachine,
    FeatureEmbedding,
    LogisticRegression,
    MLP_Block,
    SqueezeExcitation,
)
from fuxictr.pytorch.models import BaseModel
from torch import nn

from scripts.rival.settings import Settings


class Head(nn.Module):
    """The part of a network above a sample's vectors; `forward` takes ids and vectors, and returns logits [n, 1]."""

    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__()
        self.inputs = features.num_fields * settings.dim

    def perceptron(self, settings: Settings, inputs: int, outputs: int | None = 1) -> nn.Module:
        """Return the hidden layers that the settings describe."""
        return MLP_Block(
            input_dim=inputs,
            hidden_units=settings.hidden,
            output_dim=outputs,
            dropout_rates=settings.dropout,
            batch_norm=settings.norm,
        )


class Dnn(Head):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.network = self.perceptron(settings, self.inputs)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        return self.network(vectors.flatten(1))


class WideDeep(Dnn):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.wide = LogisticRegression(features, use_bias=False)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        return self.wide(ids) + super().forward(ids, vectors)


class Lr(Head):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.wide = LogisticRegression(features)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        return self.wide(ids)


class Fm(Head):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.machine = FactorizationMachine(features)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        return self.machine(ids, vectors)


class DeepFm(Dnn):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.machine = FactorizationMachine(features)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        return self.machine(ids, vectors) + super().forward(ids, vectors)


class DcnV2(Head):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.cross = CrossNetV2(self.inputs, num_layers=3)
        self.network = self.perceptron(settings, self.inputs, None)
        self.last = nn.Linear(self.inputs + settings.hidden[-1], 1)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        flat = vectors.flatten(1)
        return self.last(torch.cat([self.cross(flat), self.network(flat)], dim=1))


class XDeepFm(WideDeep):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        self.interactions = CompressedInteractionNet(features.num_fields, [32, 32])

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        return self.interactions(vectors) + super().forward(ids, vectors)


class FiBiNet(Head):
    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__(features, settings)
        fields = features.num_fields
        self.wide = LogisticRegression(features, use_bias=False)
        self.excitation = SqueezeExcitation(fields, 3, "relu")
        self.products = BilinearInteractionV2(fields, settings.dim, "field_interaction")
        self.network = self.perceptron(settings, fields * (fields - 1) * settings.dim)

    def forward(self, ids: Any, vectors: torch.Tensor) -> torch.Tensor:
        pairs = torch.cat([self.products(vectors), self.products(self.excitation(vectors))], dim=1)
        return self.wide(ids) + self.network(pairs.flatten(1))


NETWORKS: dict[str, Callable[[FeatureMap, Settings], nn.Module]] = {
    "lr": Lr,
    "ffnn": Dnn,
    "wide_deep": WideDeep,
    "fm": Fm,
    "deepfm": DeepFm,
    "dcn_v2": DcnV2,
    "xdeepfm": XDeepFm,
    "fibinet": FiBiNet,
}
"""By the name that they have in Persia."""


class Network(BaseModel):  # type: ignore[misc]
    """A network as FuxiCTR trains it."""

    def __init__(self, features: FeatureMap, settings: Settings, folder: str) -> None:
        super().__init__(
            features,
            gpu=-1,
            monitor={"AUC": 1},
            early_stop_patience=settings.patience,
            embedding_regularizer=settings.row_l2 or None,
            net_regularizer=settings.dense_l2 or None,
            reduce_lr_on_plateau=settings.plateau,
            verbose=0,
            model_root=folder,
            metrics=["AUC", "logloss"],
        )
        self.embeddings = FeatureEmbedding(features, settings.dim)
        self.head = NETWORKS[settings.network](features, settings)
        self.compile("adam", "binary_crossentropy", settings.lr)
        self.reset_parameters()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return probabilities, as FuxiCTR calls them."""
        ids = self.get_inputs(inputs)
        return {"y_pred": self.output_activation(self.head(ids, self.embeddings(ids)))}
