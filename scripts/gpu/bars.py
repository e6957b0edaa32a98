"""The speeds that are expected of one H100 with 16 processors, from batches in memory."""

from typing import NamedTuple


class Bar(NamedTuple):
    """The least ratios of a job's speed to those of its baselines as graphs, and its least samples per second."""

    tables: float | None
    dense: float | None
    samples_per_s: float


BARS = {
    "dlrm dim 16 batch 4096 float32": Bar(0.65, 0.55, 2.8e6),
    "dcn_v2 dim 16 batch 4096 float32": Bar(0.80, 0.70, 2.4e6),
    "ffnn_paper dim 16 batch 4096 float32": Bar(0.95, 0.85, 0.55e6),
    "ffnn_paper dim 16 batch 4096 bfloat16": Bar(0.95, 0.85, 2.3e6),
    "dlrm dim 128 batch 4096 float32": Bar(0.45, 0.30, 1.2e6),
    "dlrm dim 16 batch 16384 float32": Bar(0.75, 0.62, 4.5e6),
    "dlrm dim 16 batch 4096 float32, S2 W1 staleness 3": Bar(None, None, 1.7e6),
}
"""By name of the case, in the order of measuring."""


def judged_by(name: str, persia: float, tables: float | None, dense: float) -> list[str]:
    """Return each bar of a case, with the measured value and whether it passed; speeds are in samples per second."""
    bar = BARS.get(name)
    if bar is None:
        return []
    parts = [("of tables", bar.tables, tables), ("of the network alone", bar.dense, dense)]
    judged = [
        _judged(f"{persia / theirs:.2f} {what}", f"{least:.2f}", persia / theirs >= least)
        for what, least, theirs in parts
        if least is not None and theirs is not None
    ]
    return [*judged, _judged(f"{persia:,.0f} samples/s", f"{bar.samples_per_s:,.0f}", persia >= bar.samples_per_s)]


def _judged(measured: str, least: str, passed: bool) -> str:
    return f"{measured} (bar {least}): {'passed' if passed else 'MISSED'}"
