"""The clicks of a made-up shop, with planted effects, as a Parquet file and a CSV file: data of the tutorials.

    python -m scripts.shop

writes `recipes/shop`. The files are the same on every machine. A row is one offer to one user. The CSV file has no
`bought`, which is known only after the click that the tutorials predict. What was planted:

- Each user and each item has three hidden tastes. Their product decides most clicks: no single column has it.
- A user who clicked an item is more likely to click its companion, the item that follows it in its category.
- Cheap items are clicked more, most of all by young users. An age is unknown for one user in twelve.
- One click in four ends in a purchase; expensive items are bought less often.
"""

import gzip
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent / "recipes" / "shop"
ROWS, USERS, PER_CATEGORY, DAYS = 20_000, 400, 10, 60
CATEGORIES = (
    "beds", "chairs", "clocks", "desks", "lamps", "mirrors", "plants", "pots", "rugs", "shelves", "sofas", "vases",
)  # fmt: skip
USUAL_PRICES = (400, 90, 35, 220, 60, 70, 20, 15, 130, 150, 700, 25)
"""Euros, by category."""


def clicks(rows: int = ROWS, seed: int = 2026) -> pa.Table:
    """Return offers in the order of time: time, user, item, category, price, age, clicked, bought."""
    rng = np.random.default_rng(seed)
    items = len(CATEGORIES) * PER_CATEGORY
    category = np.arange(items) // PER_CATEGORY
    price = np.round(np.array(USUAL_PRICES)[category] * np.exp(rng.normal(0, 0.4, items)), 1)
    age = np.clip(rng.normal(40, 14, USERS), 18, 80).round()
    of_users, of_items = rng.normal(0, 1, (USERS, 3)), rng.normal(0, 1, (items, 3))
    users = rng.choice(USERS, rows, p=_shares(USERS, 0.6))
    offered = rng.choice(items, rows, p=rng.permutation(_shares(items, 0.7)))
    cheap = -0.5 * np.log(price / np.array(USUAL_PRICES)[category])
    base = (
        -1.9 + 1.0 * (of_users[users] * of_items[offered]).sum(1) + cheap[offered] * np.where(age[users] < 30, 3.0, 1.0)
    )
    clicked, last = np.zeros(rows, np.int8), np.full(USERS, -1)
    draws = rng.random(rows)
    for row, (user, item) in enumerate(zip(users, offered, strict=True)):
        # An item's companion is the next one of its category. Half of the offers after a click are of the companion.
        if last[user] >= 0 and rng.random() < 0.3:
            item = offered[row] = last[user] // PER_CATEGORY * PER_CATEGORY + (last[user] + 1) % PER_CATEGORY
            base[row] = -0.4 + (of_users[user] * of_items[item]).sum()
        clicked[row] = draws[row] < 1 / (1 + np.exp(-base[row]))
        last[user] = item if clicked[row] else -1
    bought = clicked * (rng.random(rows) < 0.25 - 0.12 * (price[offered] > 200)).astype(np.int8)
    minutes = np.sort(rng.choice(DAYS * 1440, rows, replace=False))
    known = rng.random(USERS) > 1 / 12
    return pa.table(
        {
            "time": _times(minutes),
            "user": users + 1,
            "item": pa.array([f"{CATEGORIES[category[i]][:-1]}-{i % PER_CATEGORY + 1}" for i in offered]),
            "category": pa.array([CATEGORIES[category[i]] for i in offered]),
            "price": price[offered],
            "age": pa.array(age[users].astype(np.int16), mask=~known[users]),
            "clicked": clicked,
            "bought": bought,
        }
    )


def _shares(count: int, power: float) -> NDArray[np.float64]:
    """Return shares of a Zipf-like distribution, largest first."""
    weights = np.arange(1, count + 1) ** -power
    return weights / weights.sum()


def _times(minutes: NDArray[np.int64]) -> Any:
    start = datetime(2026, 9, 1)
    return pa.array([start + timedelta(minutes=int(each)) for each in minutes], pa.timestamp("s"))


def main() -> None:
    """Write both files."""
    table = clicks()
    (ROOT / "data").mkdir(parents=True, exist_ok=True)
    by_value = [name for name in table.column_names if name != "time"]
    pq.write_table(
        table, ROOT / "data" / "shop.parquet", compression="zstd", compression_level=19, row_group_size=ROWS // 4,
        use_dictionary=by_value, column_encoding={"time": "DELTA_BINARY_PACKED"},
    )  # fmt: skip
    text = pa.BufferOutputStream()
    csv.write_csv(table.drop_columns(["bought"]), text, csv.WriteOptions(quoting_style="none"))
    with (ROOT / "clicks.csv.gz").open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text.getvalue())


if __name__ == "__main__":
    main()
