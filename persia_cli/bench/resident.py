"""A process that fills a store to capacity and reports its memory: `python -m persia_cli.bench.resident ROWS DIM`."""

import json
import sys

import numpy as np

from persia_cli.bench import stores
from persia_cli.bench.layouts import one_table
from persia_cli.kernels.warm import warm
from persia_cli.observe.usage import resident_bytes
from persia_cli.store.shard import Shard

REQUEST = 1 << 16


def measure(capacity: int, dim: int) -> dict[str, int]:
    """Add ids up to four thirds of the store's capacity; return the process's bytes before and after, and the rows."""
    warm()
    before = resident_bytes()
    shard = Shard(one_table(dim, "adagrad", capacity), 0, 1)
    last = capacity + capacity // 3
    for start in range(0, last, REQUEST):
        asked = stores.request(np.arange(start, min(last, start + REQUEST)))
        shard.look_up(0, asked.keys, asked.tables, start // REQUEST, True)
    rows = sum(counters.rows for counters in shard.counters().values())
    return {"before": before, "after": resident_bytes(), "rows": rows}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
