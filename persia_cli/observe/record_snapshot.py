"""The whole state of a run's record between two lines, as bytes: with it another process goes on as the first would."""

import msgspec
import numpy as np

from persia_cli.observe.recent_scores import RecentScores
from persia_cli.observe.scores import MOST_IN_TRAINING, ScoreHistogram
from persia_cli.wire.job_messages import ScoreCounts
from persia_cli.wire.message import TableTotals


class EncodedScores(msgspec.Struct, frozen=True, array_like=True):
    """The arrays of ScoreCounts: uint64 [k], float64 [k] and float64 [tasks, sums]."""

    counted: bytes
    counts: bytes
    sums: bytes


class RecordSnapshot(msgspec.Struct, frozen=True):
    """The state of a RunRecord while no evaluation is under way; figures of replicas come again by themselves."""

    next_report: int
    step: int
    samples: int
    look_ups: int
    unknown: int
    tables: tuple[TableTotals, ...]
    tables_before: TableTotals
    notified: list[str]
    scores: EncodedScores
    older: list[EncodedScores]
    newer: list[EncodedScores]
    newer_together: EncodedScores
    metrics_bytes: int
    """Size of the file of metrics."""


def encode_scores(scores: ScoreHistogram) -> EncodedScores:
    """Encode the scores of training."""
    return EncodedScores(*(array.tobytes() for array in scores.encode()))


def decode_scores(encoded: EncodedScores, tasks: int) -> ScoreHistogram:
    """Return scores that go on as the encoded ones would."""
    counted, counts = np.frombuffer(encoded.counted, np.uint64), np.frombuffer(encoded.counts, np.float64)
    sums = np.frombuffer(encoded.sums, np.float64).reshape(tasks, -1)
    return ScoreHistogram.restored(tasks, MOST_IN_TRAINING, ScoreCounts(counted, counts, sums))


def decode_recent(snapshot: RecordSnapshot, tasks: int, intervals: int) -> RecentScores:
    """Return the scores of the last intervals."""
    older, newer = ([decode_scores(each, tasks) for each in part] for part in (snapshot.older, snapshot.newer))
    return RecentScores(tasks, intervals, stacks=(older, newer, decode_scores(snapshot.newer_together, tasks)))
