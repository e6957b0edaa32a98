"""The preparation of Criteo's text, against a polars script that writes the same without any checks.

    python -m scripts.measure prepare train.txt                      # a Criteo file; a small one is repeated
    python -m scripts.measure prepare train.txt.gz --rows 8000000

Both read the same plain text and write Parquet of the same columns (zstd, row groups of 65,536 rows, statistics), in
their own process with as many threads as there are cores. The times are of whole processes, with their start. First
both prepare the file once, and every value must be equal.

polars is in the group `compare`: `pip install --group compare`, in a checkout.
"""

import gzip
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import pyarrow.compute as pc
import pyarrow.parquet as pq

from persia_cli.bench.result import OURS, Result
from persia_cli.errors import UserError
from scripts.measure import Given, Note
from scripts.measure.timing import Turn, alternate, compared

DENSE = [f"I{number}" for number in range(1, 14)]
SPARSE = [f"C{number}" for number in range(1, 27)]
THEIRS = """
import sys
import polars as pl
dense, sparse = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
schema = {"label": pl.Int8} | dict.fromkeys(dense, pl.Int64) | dict.fromkeys(sparse, pl.String)
rows = pl.scan_csv(sys.argv[1], separator="\\t", has_header=False, schema=schema, quote_char=None)
counts = [pl.col(name).fill_null(0).clip(lower_bound=0).cast(pl.Float32).log1p() for name in dense]
ids = [pl.col(name).str.to_integer(base=16, dtype=pl.UInt64) for name in sparse]
rows.with_columns(*counts, *ids).sink_parquet(
    sys.argv[2] + "/all.parquet", compression="zstd", statistics=True, row_group_size=65536, mkdir=True
)
"""


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("source", type=Path, help="a file in Criteo's format, plain or .gz")
    parser.add_argument("--rows", type=int, default=4_000_000, help="repeat the file until it has so many")
    parser.set_defaults(rounds=5)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Check the values, then measure; writes to the folder for temporary files (`TMPDIR`)."""
    try:
        import polars  # noqa: F401
    except ImportError:
        raise UserError("this comparison needs polars: pip install --group compare") from None
    with TemporaryDirectory(prefix="measure-prepare-") as name:
        folder = Path(name)
        content = given.source.read_bytes()
        plain, large = folder / "rows.txt", folder / "large.txt"
        plain.write_bytes(gzip.decompress(content) if given.source.suffix == ".gz" else content)
        note("comparing all values")
        rows = agreed_rows(plain, folder)
        times = 1 if given.quick else -(-given.rows // rows)
        with large.open("wb") as file:
            for _ in range(times):
                file.write(plain.read_bytes())
        note(f"preparing {rows * times:,} rows, {large.stat().st_size / 2**20:,.0f} MiB of text")
        sides = {side: Turn(partial(_prepare, side, large, folder / side), loops=1) for side in (OURS, "polars")}
        timed = alternate(sides, given.rounds, clock=perf_counter)
        cores = len(os.sched_getaffinity(0))
        name = f"preparing {rows * times / 1e6:.3g}M rows of Criteo's text on {cores} cores"
        yield compared(name, timed, rows * times, "rows/s")


def agreed_rows(source: Path, folder: Path) -> int:
    """Prepare a file in both ways; return its rows. Raises UserError if a value differs."""
    tables = {}
    for side in (OURS, "polars"):
        _prepare(side, source, folder / side)
        tables[side] = pq.read_table(sorted((folder / side).glob("*.parquet")))
    ours, theirs = tables.values()
    for name in ("label", *SPARSE, *DENSE):
        mine, other = ours.column(name), theirs.column(name)
        if name in DENSE:
            is_equal = pc.max(pc.abs(pc.subtract(mine, other))).as_py() <= 1e-5
        else:
            is_equal = mine.cast(other.type).equals(other)
        if not is_equal:
            raise UserError(f"column {name} differs")
    return int(ours.num_rows)


def _prepare(side: str, source: Path, output: Path) -> None:
    """Prepare a file into a new folder."""
    shutil.rmtree(output, ignore_errors=True)
    ours = ["-m", "persia_cli", "recipe", "prepare", "criteo", "--input", str(source), "--output", str(output)]
    command = ours if side == OURS else ["-c", THEIRS, str(source), str(output)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
