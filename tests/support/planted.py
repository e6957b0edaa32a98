"""Generated samples of text columns with a planted model, like small tables of users."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = 26


def write_planted(path: Path, rows: int = 12_000) -> list[str]:
    """Write samples with 26 text columns of 2 to 200 values, and return the names of these columns.

    The log odds of `label` are a sum of a normal effect of each column's value, and of the pairs of values of ten pairs
    of columns; frequencies of values fall as 1/rank.
    """
    draw = np.random.default_rng(5)
    sizes = np.geomspace(2, 200, COLUMNS).astype(int)
    chosen = [draw.choice(size, rows, p=_falling(size)) for size in sizes]
    odds = sum(draw.normal(0, 0.35, size)[values] for size, values in zip(sizes, chosen, strict=True))
    for _ in range(10):
        one, other = draw.choice(COLUMNS // 2, 2, replace=False)
        odds = odds + draw.normal(0, 0.5, (sizes[one], sizes[other]))[chosen[one], chosen[other]]
    odds = odds - np.median(odds) - 0.5
    label = draw.random(rows) < 1 / (1 + np.exp(-odds))
    names = [f"c{number}" for number in range(COLUMNS)]
    texts = {name: [f"{name}-{value}" for value in values] for name, values in zip(names, chosen, strict=True)}
    pq.write_table(pa.table({"label": label.astype(np.int8), **texts}), path)
    return names


def _falling(size: int) -> np.ndarray:
    weights = 1.0 / np.arange(1, size + 1)
    return weights / weights.sum()
