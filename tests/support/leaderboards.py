"""Generated rows in the format of the leaderboards' files, and of Criteo's challenge in the format of Criteo_x4."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

COUNTS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
NAMES = ["site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id", "device_ip",
         "device_model"]  # fmt: skip
PARTS = ("train", "valid", "test")
ROWS = 60
"""Rows of each part."""


def write_x1(folder: Path, columns: Sequence[str]) -> Path:
    """Write train.csv, valid.csv and test.csv of a label, scaled numbers (I…) and numbered categories."""
    random = np.random.default_rng(0)
    for part in PARTS:
        lines = [",".join(["label", *columns])]
        for _ in range(ROWS):
            values = [f"{random.random():.6f}" if name in COUNTS else str(random.integers(90)) for name in columns]
            lines.append(",".join([str(random.integers(2)), *values]))
        _write(folder / f"{part}.csv", lines)
    return folder


def write_criteo_x4(folder: Path) -> Path:
    """Write train.csv, valid.csv and test.csv of a label, counts and categories, some of them missing."""
    random = np.random.default_rng(0)
    for part in PARTS:
        lines = [",".join(["Label", *COUNTS, *CATEGORIES])]
        for _ in range(ROWS):
            counts = ["" if count == 5 else str(count) for count in random.integers(-2, 900, 13)]
            categories = [f"{value:08x}" if value else "" for value in random.integers(0, 9, 26)]
            lines.append(",".join([str(random.integers(2)), *counts, *categories]))
        _write(folder / f"{part}.csv", lines)
    return folder


def write_avazu_x4(folder: Path) -> Path:
    """Write train.csv, valid.csv and test.csv in the format of Avazu's challenge."""
    random = np.random.default_rng(0)
    header = ["id", "click", "hour", "C1", "banner_pos", *NAMES, "device_type", "device_conn_type"]
    for part in PARTS:
        lines = [",".join([*header, *(f"C{number}" for number in range(14, 22))])]
        for row in range(ROWS):
            small = [str(value) for value in random.integers(0, 5, 12)]
            names = [f"{value:08x}" for value in random.integers(0, 9, 9)]
            hour = f"141021{random.integers(24):02}"
            lines.append(",".join([str(row), str(random.integers(2)), hour, *small[:2], *names, *small[2:]]))
        _write(folder / f"{part}.csv", lines)
    return folder


def split_challenge(source: Path, folder: Path) -> Path:
    """Write rows of Criteo's challenge, gzipped text, as train.csv, valid.csv and test.csv: of ten rows 8, 1 and 1."""
    with gzip.open(source, "rt") as text:
        rows = [line.rstrip("\n").replace("\t", ",") for line in text]
    header = ",".join(["Label", *COUNTS, *CATEGORIES])
    _write(folder / "train.csv", [header, *(row for number, row in enumerate(rows) if number % 10 < 8)])
    _write(folder / "valid.csv", [header, *rows[8::10]])
    _write(folder / "test.csv", [header, *rows[9::10]])
    return folder


def _write(file: Path, lines: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
