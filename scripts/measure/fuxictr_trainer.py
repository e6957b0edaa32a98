"""One training of FuxiCTR, a process: `python -m scripts.measure.fuxictr_trainer SAMPLES SETTINGS FOLDER`.

The first two are JSON. The networks are made of FuxiCTR's own layers: its package has the layers, and only its
repository the networks. The samples lie in memory and come as slices of one array, which is faster than its loaders.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
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
from fuxictr.pytorch.torch_utils import seed_everything
from torch import nn

from scripts.measure.comparisons.fuxictr import CLIP, DIM, LABEL, LR, PART, PATIENCE, Settings


class Head(nn.Module):
    """The part of a network above a sample's vectors; `forward` takes ids and vectors, and returns logits [n, 1]."""

    def __init__(self, features: FeatureMap, settings: Settings) -> None:
        super().__init__()
        self.inputs = features.num_fields * DIM

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
        self.products = BilinearInteractionV2(fields, DIM, "field_interaction")
        self.network = self.perceptron(settings, fields * (fields - 1) * DIM)

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
            early_stop_patience=PATIENCE,
            reduce_lr_on_plateau=True,
            verbose=0,
            model_root=folder,
            metrics=["AUC", "logloss"],
        )
        self.embeddings = FeatureEmbedding(features, DIM)
        self.head = NETWORKS[settings.network](features, settings)
        self.compile("adam", "binary_crossentropy", LR)
        self.reset_parameters()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return probabilities, as FuxiCTR calls them."""
        ids = self.get_inputs(inputs)
        return {"y_pred": self.output_activation(self.head(ids, self.embeddings(ids)))}


class Batches:
    """Batches of samples; each iteration is an epoch."""

    def __init__(self, table: pa.Table, ids: dict[str, int], batch: int, shuffled: bool) -> None:
        self._names, self._batch, self._shuffled = [*ids], batch, shuffled
        self._ids = torch.from_numpy(np.column_stack([table[name].to_numpy() for name in ids]))
        self.labels = torch.from_numpy(table[LABEL].to_numpy().copy())

    def __len__(self) -> int:
        return -(-len(self.labels) // self._batch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = torch.randperm(len(self.labels)) if self._shuffled else torch.arange(len(self.labels))
        for rows in torch.split(order, self._batch):
            columns = self._ids[rows].unbind(1)
            yield dict(zip(self._names, columns, strict=True)) | {LABEL: self.labels[rows]}


def feature_map(ids: dict[str, int], folder: Path) -> FeatureMap:
    """Return FuxiCTR's description of the columns; the id 0 is of none."""
    features = FeatureMap("samples", str(folder))
    features.labels = [LABEL]
    for name, most in ids.items():
        features.features[name] = {"source": "", "type": "categorical", "vocab_size": most, "padding_idx": 0}
    features.num_fields, features.total_features = len(ids), sum(ids.values())
    return features


def main(samples: str, settings: str, folder: Path) -> dict[str, Any]:
    """Train, and score the test samples by the best model; return metrics and the scores' file."""
    train, test, ids = json.loads(samples)
    chosen = Settings(**json.loads(settings))
    torch.set_num_threads(chosen.threads)
    seed_everything(chosen.seed)
    logging.basicConfig(level=logging.WARNING)
    table = pq.read_table(train)
    parts = {part: table.filter(pc.equal(table[PART], part)) for part in ("train", "eval")}
    batches = Batches(parts["train"], ids, chosen.batch, shuffled=True)
    validation = Batches(parts["eval"], ids, chosen.batch, shuffled=False)
    model = Network(feature_map(ids, folder), chosen, str(folder))
    Path(model.checkpoint).parent.mkdir(parents=True)
    evaluating, evaluate = [0.0], model.eval_step

    def timed() -> None:
        began = time.perf_counter()
        evaluate()
        evaluating[0] += time.perf_counter() - began

    model.eval_step = timed
    began = time.perf_counter()
    model.fit(batches, epochs=chosen.epochs, validation_data=validation, max_gradient_norm=CLIP)
    took = time.perf_counter() - began
    scores = model.predict(Batches(pq.read_table(test), ids, chosen.batch, shuffled=False))
    np.save(folder / "scores.npy", scores)
    seconds = took - evaluating[0]
    epochs = model._epoch_index + 1
    return {"epochs": epochs, "samples_per_s": epochs * len(batches.labels) / seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
