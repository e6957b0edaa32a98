"""Compare the preparation of Criteo's text with a polars script that writes the same without any checks.

    python scripts/compare_prepare.py train.txt                    # a Criteo file; a small one is repeated
    python scripts/compare_prepare.py train.txt.gz --rows 8000000 --rounds 5

Both read the same plain text and write Parquet of the same columns (zstd, row groups of 65,536 rows, statistics). Each
runs in its own process with as many threads as there are cores, alternating. The times are of whole processes, with
their start. First both prepare the file once, and every value must be equal.

polars is in the group `compare`: `pip install --group compare`, in a checkout.
"""

import argparse
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import pyarrow.compute as pc
import pyarrow.parquet as pq

DENSE = [f"I{number}" for number in range(1, 14)]
SPARSE = [f"C{number}" for number in range(1, 27)]
TARGET_ROWS_PER_S, TARGET_RATIO = 400_000, 0.35
"""Targets on two cores: rows a second, and polars' time over ours."""

THEIRS = """
import sys
import polars as pl
dense, sparse = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
schema = {"label": pl.Int8} | dict.fromkeys(dense, pl.Int64) | dict.fromkeys(sparse, pl.String)
rows = pl.scan_csv(sys.argv[1], separator="\\t", has_header=False, schema=schema, quote_char=None)
counts = [pl.col(name).fill_null(0).clip(lower_bound=0).cast(pl.Float32).log1p() for name in dense]
ids = [pl.col(name).str.to_integer(base=16, dtype=pl.UInt64) for name in sparse]
rows.with_columns(*counts, *ids).sink_parquet(
    sys.argv[2], compression="zstd", statistics=True, row_group_size=65536, mkdir=True
)
"""


def ours(source: Path, output: Path) -> list[str]:
    """Return the command that prepares a file with our recipe."""
    return [
        sys.executable,
        "-m",
        "persia_cli",
        "recipe",
        "prepare",
        "criteo",
        "--input",
        str(source),
        "--output",
        str(output),
    ]


def theirs(source: Path, output: Path) -> list[str]:
    """Return the command that prepares it with polars."""
    return [sys.executable, "-c", THEIRS, str(source), str(output / "all.parquet")]


def seconds(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and its processor seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    took, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def agree(source: Path, folder: Path) -> int:
    """Prepare a file in both ways; return its rows. Raises SystemExit if a value differs."""
    outputs = [folder / "agree-ours", folder / "agree-theirs"]
    for command, output in zip((ours, theirs), outputs, strict=True):
        subprocess.run(command(source, output), check=True, capture_output=True)
    mine, other = (pq.read_table(sorted(output.glob("*.parquet"))) for output in outputs)
    for name in ["label", *SPARSE]:
        if not mine.column(name).cast(other.column(name).type).equals(other.column(name)):
            raise SystemExit(f"column {name} differs")
    for name in DENSE:
        if pc.max(pc.abs(pc.subtract(mine.column(name), other.column(name)))).as_py() > 1e-5:
            raise SystemExit(f"column {name} differs")
    return int(mine.num_rows)


def repeated(source: Path, times: int, folder: Path) -> Path:
    """Write a file's lines several times over."""
    lines, target = source.read_bytes(), folder / "large.txt"
    with target.open("wb") as file:
        for _ in range(times):
            file.write(lines)
    return target


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a file in Criteo's format, plain or .gz")
    parser.add_argument("--rows", type=int, default=4_000_000, help="repeat the file until it has so many")
    parser.add_argument("--rounds", type=int, default=5, help="alternating runs")
    parser.add_argument("--scratch", type=Path, help="folder for what is written, removed at the end")
    return parser.parse_args()


def main() -> None:
    """Check the values, then measure, then print if the targets were met."""
    chosen = options()
    folder = Path(tempfile.mkdtemp(prefix="compare-prepare-", dir=chosen.scratch))
    try:
        plain = folder / "rows.txt"
        unpack = gzip.decompress if chosen.source.suffix == ".gz" else bytes
        plain.write_bytes(unpack(chosen.source.read_bytes()))
        rows = agree(plain, folder)
        times = -(-chosen.rows // rows)
        large, rows = repeated(plain, times, folder), rows * times
        mib, cores = large.stat().st_size / 2**20, len(os.sched_getaffinity(0))
        print(f"{rows:,} rows, {mib:,.0f} MiB of text, {cores} cores; values agree")
        took: dict[str, list[float]] = {"ours": [], "polars": []}
        for turn in range(chosen.rounds):
            for name, command in (("ours", ours), ("polars", theirs)):
                output = folder / f"{name}-{turn}"
                wall, cpu = seconds(command(large, output))
                size = sum(file.stat().st_size for file in output.glob("*.parquet"))
                shutil.rmtree(output)
                took[name].append(wall)
                print(
                    f"{name:8}{wall:7.2f} s {cpu:7.2f} CPU s {rows / wall:12,.0f} rows/s {size / 2**20:8,.0f} MiB",
                    flush=True,
                )
        ratio = median(other / mine for mine, other in zip(took["ours"], took["polars"], strict=True))
        rate = rows / median(took["ours"])
        goals = f"at least {TARGET_ROWS_PER_S:,} rows/s and {TARGET_RATIO} x polars"
        print(f"median  {rate:,.0f} rows/s, {ratio:.2f} x polars; targets: {goals}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
