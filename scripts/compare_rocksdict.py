"""Compare the cold log with RocksDB behind the same interface: rows written, and read back by key, in one thread.

Install `rocksdict` first (`pip install rocksdict`); it is no dependency of Persia. Both sides keep their files in the
page cache, so this measures processor time. Run `python -m scripts.compare_rocksdict --rows 1000000`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.rows.rows import FLOAT32, RowArena
from persia_cli.store.cold.cold_rows import ColdRows, ColdStorage
from persia_cli.store.layout import GroupSpec, RowOptimizer, TableSpec, table_salt

WIDTH = 32
"""Overrides of a row of dim 16 with Adagrad."""
AT_ONCE = 4096
Keys = NDArray[np.uint64]


class Cold:
    """The cold log of one feature group."""

    def __init__(self, folder: Path, rows: int) -> None:
        table = TableSpec("item", 0, table_salt("item"), 0.01)
        group = GroupSpec(0, 16, RowOptimizer("adagrad", 0.1), (table,), rows, 1, cold_bytes=rows * 320)
        self._log = ColdRows(group, 1, ColdStorage(folder, 1), np.zeros, 1)
        self._log.begin()

    def put(self, keys: Keys, rows: NDArray[np.float32]) -> None:
        """Write rows float32[n, WIDTH] of new keys."""
        none, line = np.zeros(keys.size, np.uint32), np.zeros(16, np.float32)
        words = RowArena(rows.reshape(-1), np.uint64(WIDTH), np.uint64(16), np.uint64(16), FLOAT32, line)
        self._log.append(keys, np.zeros(keys.size, np.uint16), none, none, words)

    def get(self, keys: Keys) -> NDArray[np.float32]:
        """Return the rows of keys, float32[n, WIDTH]."""
        found = self._log.find(keys, np.zeros(keys.size, np.uint16))
        rows = np.empty((keys.size, WIDTH), np.float32)
        rows[found.positions] = found.words.reshape(keys.size, -1)[:, -WIDTH:]
        return rows

    def close(self) -> None:
        """Remove the files."""
        self._log.close()


class Rocks:
    """A RocksDB of raw bytes."""

    def __init__(self, folder: Path, rows: int) -> None:
        from rocksdict import Options, Rdict, WriteBatch

        self._batch = WriteBatch
        self._store = Rdict(str(folder), Options(raw_mode=True))

    def put(self, keys: Keys, rows: NDArray[np.float32]) -> None:
        """Write rows float32[n, WIDTH] of new keys."""
        batch = self._batch(raw_mode=True)
        for key, row in zip(keys, rows, strict=True):
            batch.put(key.tobytes(), row.tobytes())
        self._store.write(batch)

    def get(self, keys: Keys) -> NDArray[np.float32]:
        """Return the rows of keys, float32[n, WIDTH]."""
        found = self._store.get([key.tobytes() for key in keys])
        return np.frombuffer(b"".join(found), np.float32).reshape(keys.size, WIDTH)

    def close(self) -> None:
        """Close the files."""
        self._store.close()


def main() -> None:
    """Fill both stores, read from them alternately, and print microseconds of processor time per row and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args()
    try:
        import rocksdict  # noqa: F401
    except ImportError:
        sys.exit("this comparison needs rocksdict: pip install rocksdict")
    rng = np.random.default_rng(0)
    keys = rng.integers(2**64, size=given.rows, dtype=np.uint64)
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "cold log": Cold(Path(folder) / "cold", given.rows),
            "rocksdict": Rocks(Path(folder) / "db", given.rows),
        }
        rows = rng.standard_normal((AT_ONCE, WIDTH)).astype(np.float32)
        times: dict[str, list[float]] = {}
        for first in range(0, given.rows - AT_ONCE + 1, AT_ONCE):
            for name, side in sides.items():
                _timed(
                    times,
                    f"{name}: write",
                    lambda side=side, first=first: side.put(keys[first : first + AT_ONCE], rows),
                )
        for _ in range(given.rounds):
            wanted = rng.choice(keys[: given.rows // AT_ONCE * AT_ONCE], AT_ONCE, replace=False)
            got = [
                _timed(times, f"{name}: read", lambda side=side, wanted=wanted: side.get(wanted))
                for name, side in sides.items()
            ]
            assert (got[0] == got[1]).all()
        for side in sides.values():
            side.close()
    medians = {name: statistics.median(each) / AT_ONCE * 1e6 for name, each in times.items()}
    for name, value in medians.items():
        print(f"{name}: {value:.2f} us of processor time per row")
    for what in ("write", "read"):
        print(f"{what}: rocksdict takes {medians[f'rocksdict: {what}'] / medians[f'cold log: {what}']:.1f} x as long")


def _timed(times: dict[str, list[float]], name: str, call: Callable[[], NDArray[np.float32] | None]) -> object:
    begun_s = time.process_time()
    result = call()
    times.setdefault(name, []).append(time.process_time() - begun_s)
    return result


if __name__ == "__main__":
    main()
