"""The metrics of rows on disks in a line, by the counters of embedding servers at the line before and now."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from persia_cli.wire.job_messages import together
from persia_cli.wire.message import TableTotals


def cold_metrics(
    before: Sequence[TableTotals], now: Sequence[TableTotals], seconds: float, steps: float
) -> dict[str, Any]:
    """Return the metrics of an interval of so many seconds and steps; totals are those of each server."""
    first, last = together([TableTotals(), *before]), together([TableTotals(), *now])
    asked = last.hits + last.misses - first.hits - first.misses
    returned = last.returned - first.returned
    in_memory = last.hits - first.hits - returned
    waits_us = [
        after.cold_waited_us - former.cold_waited_us
        for former, after in zip_longest(before, now, fillvalue=TableTotals())
    ]
    return {
        "cold_rows": last.cold_rows,
        "cold_dropped": last.dropped,
        "memory_hit_rate": round(in_memory / asked, 6) if asked else None,
        "cold_hit_rate": round(returned / asked, 6) if asked else None,
        "cold_reads_per_s": round((last.cold_reads - first.cold_reads) / max(seconds, 1e-9), 1),
        "cold_wait_ms": round(max(waits_us, default=0) / 1000 / max(steps, 1), 3),
        "cold_written": last.cold_written,
    }
