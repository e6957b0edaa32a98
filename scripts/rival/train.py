"""One training of FuxiCTR, a process: `python -m scripts.rival.train SAMPLES SETTINGS FOLDER`, the first two JSON.

Its samples lie in memory and come as slices of one array, which is faster than the loaders that it brings.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.torch_utils import seed_everything

from scripts.rival.networks import Network
from scripts.rival.samples import LABEL, PART
from scripts.rival.settings import Settings


class Batches:
    """Batches of samples; an epoch each time they are asked for."""

    def __init__(self, table: pa.Table, ids: dict[str, int], batch: int, shuffled: bool) -> None:
        self._names, self._batch, self._shuffled = [*ids], batch, shuffled
        self._ids = torch.from_numpy(np.column_stack([table[name].to_numpy() for name in ids]))
        self.labels = torch.from_numpy(table[LABEL].to_numpy().copy())

    def __len__(self) -> int:
        return -(-len(self.labels) // self._batch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = torch.randperm(len(self.labels)) if self._shuffled else torch.arange(len(self.labels))
        for rows in order.split(self._batch):
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
    model.fit(batches, epochs=chosen.epochs, validation_data=validation, max_gradient_norm=chosen.clip)
    took = time.perf_counter() - began
    scores = model.predict(Batches(pq.read_table(test), ids, chosen.batch, shuffled=False))
    np.save(folder / "scores.npy", scores)
    seconds = took - evaluating[0]
    epochs = model._epoch_index + 1
    return {"epochs": epochs, "wall_s": took, "samples_per_s": epochs * len(batches.labels) / seconds}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
