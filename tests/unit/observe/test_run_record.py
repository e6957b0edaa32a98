"""The record of a run: the reports of ranks become one line per interval."""

import math
from itertools import product
from random import Random
from typing import Any, Literal

import numpy as np
import pytest
from msgspec.structs import replace

from persia_cli.errors import WireError
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.observe.scores import QUALITY, QueryScores, ScoreHistogram
from persia_cli.wire.job_messages import REPORTS_AHEAD, IntervalMetrics, ScoreCounts, ScoredSamples
from tests.support.recorded import GRID, Recording

STEPS = 4
"""Steps of an interval."""

Reported = tuple[IntervalMetrics, ScoreCounts, ScoredSamples | None]


def samples_of(rank: int, number: int, tasks: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Generated logits and labels of one rank's interval: 5 to 8 samples, no two intervals alike."""
    draw = np.random.default_rng([rank, number, tasks])
    rows = 5 + (rank + number) % 4
    return draw.normal(size=(rows, tasks)), (draw.random((rows, tasks)) < 0.4).astype(np.float64)


def report(
    logits: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    last: int,
    split: Literal["train", "eval"] = "train",
    stale: int = 0,
    seconds: float = 1.0,
) -> Reported:
    """Return a rank's report of an interval that ended before step `last`."""
    scores = ScoreHistogram(labels.shape[1])
    scores.add(logits, labels)
    figures = IntervalMetrics(
        split=split,
        last=last,
        samples=len(labels),
        steps=STEPS,
        staleness={stale: STEPS - 1, stale + 2: 1},
        seconds=seconds,
        loss_sums=tuple((scores.log_loss(task) or 0.0) * scores.weight(task) for task in range(scores.tasks)),
    )
    return figures, scores.encode(), None


def made_up(rank: int, number: int, split: Literal["train", "eval"] = "train") -> Reported:
    return report(*samples_of(rank, number), last=number * STEPS, split=split, stale=rank)


def merged(keys: list[tuple[int, int]]) -> ScoreHistogram:
    """Return the scores of some (rank, number), merged in this order."""
    scores = ScoreHistogram(1)
    for rank, number in keys:
        scores.merge_encoded(made_up(rank, number)[1])
    return scores


def quality(scores: ScoreHistogram, prefix: str = "") -> dict[str, float | None]:
    """Return the metrics of a line with these scores."""
    names = ("auc", "log_loss", "ne", "calibration", "pr_auc", "accuracy")
    return {f"{prefix}{name}": QUALITY[name](scores, 0) for name in names}


def test_a_line_merges_the_ranks_of_an_interval(recording: Recording) -> None:
    recorded = recording()
    for rank in range(3):
        recorded.record.add_report(rank, 1, *made_up(rank, 1))
    scores = merged([(rank, 1) for rank in range(3)])
    assert recorded.lines == [
        {
            "step": STEPS,
            "samples": STEPS * 12,
            "split": "train",
            "loss": scores.log_loss(),
            **quality(scores),
            **quality(scores, "window_"),
            "staleness_mean": 1.5,
            "staleness_max": 4,
            "staleness": [{"0": 3, "2": 1}, {"1": 3, "3": 1}, {"2": 3, "4": 1}],
            "rows": 0,
            "hit_rate": None,
            "look_up_hit_rate": None,
            "evicted": 0,
        }
    ]


def test_the_loss_is_what_the_network_was_trained_on(recording: Recording) -> None:
    recorded = recording(ranks=1)
    figures, *scores = made_up(0, 1)
    recorded.record.add_report(0, 1, replace(figures, loss_sums=(4.5,)), *scores)
    assert recorded.lines[0]["loss"] == 4.5 / figures.samples


def test_the_loss_of_positions_is_their_mean_over_all_ranks(recording: Recording) -> None:
    recorded = recording(ranks=2)
    for rank, (total, weight) in enumerate(((4.5, 3.0), (0.5, 7.0))):
        figures, *scores = made_up(rank, 1)
        recorded.record.add_report(rank, 1, replace(figures, loss_sums=(total,), position_weight=weight), *scores)
    assert recorded.lines[0]["loss"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_lines_do_not_depend_on_the_order_of_reports(recording: Recording, seed: int) -> None:
    keys = list(product(range(3), range(1, 7)))
    expected = recording()
    for rank, number in keys:
        expected.record.add_report(rank, number, *made_up(rank, number, "eval" if number == 4 else "train"))
    assert [line["step"] for line in expected.lines] == [4, 8, 12, 12, 20, 24]

    recorded = recording()
    coming = keys * 2
    Random(seed).shuffle(coming)
    for rank, number in coming:
        recorded.record.add_report(rank, number, *made_up(rank, number, "eval" if number == 4 else "train"))
    assert recorded.lines == expected.lines
    assert not any(recorded.record._reports), "a repeat is kept for ever"


def test_sums_are_taken_in_the_order_of_ranks(recording: Recording) -> None:
    recorded = recording()
    big = float(np.float32(1e16))
    for rank, logit in ((2, -1.0), (0, -big), (1, -1.0)):
        recorded.record.add_report(rank, 1, *report(np.full((1, 1), logit), np.ones((1, 1)), last=1))
    small = math.log1p(math.exp(-1.0)) + 1.0
    assert (big + small) + small != (small + small) + big
    assert recorded.lines[0]["loss"] == ((big + small) + small) / 3


def test_the_window_is_the_last_intervals_of_training(recording: Recording) -> None:
    recorded = recording(ranks=1, window=2)
    for number, split in ((1, "train"), (2, "eval"), (3, "train"), (4, "train")):
        recorded.record.add_report(0, number, *made_up(0, number, split))
    windows = [[(0, 1)], [(0, 1), (0, 3)], [(0, 3), (0, 4)]]
    for line, window in zip([recorded.lines[at] for at in (0, 2, 3)], windows, strict=True):
        assert line.items() >= quality(merged(window), "window_").items()


def test_an_evaluation_may_come_in_portions(recording: Recording) -> None:
    recorded = recording(ranks=2, group_by="user")
    draw = np.random.default_rng(5)
    ids = {(rank, number): draw.integers(0, 4, len(samples_of(rank, number)[1])).astype(np.uint64)
           for number in (1, 2) for rank in range(2)}  # fmt: skip
    told = []
    for (rank, number), groups in ids.items():
        logits, labels = (array.astype(np.float32) for array in samples_of(rank, number))
        figures, scores, _ = report(logits, labels, last=number, split="eval")
        samples = ScoredSamples(groups, logits, labels, None)
        told += recorded.record.add_report(rank, number, replace(figures, more=number == 1), scores, samples)
    [line] = told
    assert recorded.lines == [{key: line[key] for key in line if key != "samples_per_s"}]
    whole, everything = ScoreHistogram(1), QueryScores(1)
    for (rank, number), groups in ids.items():
        logits, labels = (array.astype(np.float32) for array in samples_of(rank, number))
        whole.add(logits, labels)
        everything.add(groups, logits, labels)
    assert (line["auc"], line["gauc"], line["eval_samples"]) == (whole.auc(), everything.gauc(), whole.weight())
    assert line["loss"] == pytest.approx(whole.log_loss())
    recorded.record.add_report(0, 3, *made_up(0, 3, "eval"))
    recorded.record.add_report(1, 3, *made_up(1, 3, "eval"))
    assert recorded.lines[-1]["gauc"] is None, "the next evaluation begins with nothing"


def test_an_evaluation_has_its_own_counts_and_the_trained_model(recording: Recording) -> None:
    recorded = recording(ranks=2)
    for number, split in ((1, "train"), (2, "eval"), (3, "train")):
        for rank in range(2):
            recorded.record.add_report(rank, number, *made_up(rank, number, split))
    trained, evaluated, last = recorded.lines
    alone = merged([(0, 2), (1, 2)])
    assert evaluated == {
        "step": trained["step"],
        "samples": trained["samples"],
        "split": "eval",
        "loss": alone.log_loss(),
        **quality(alone),
        "eval_samples": sum(len(samples_of(rank, 2)[1]) for rank in range(2)),
        "rows": 0,
        "hit_rate": None,
        "look_up_hit_rate": None,
        "evicted": 0,
        "unknown": None,
    }
    training = merged([(0, 1), (1, 1)])
    training.merge(merged([(0, 3), (1, 3)]))
    assert last["auc"] == training.auc()


def test_samples_are_counted_over_short_steps_and_passes(recording: Recording) -> None:
    recorded = recording(ranks=1)
    assert GRID.steps == 9
    logits, labels = samples_of(0, 1)
    for number, last in enumerate((8, 9, 10, 18), 1):
        recorded.record.add_report(0, number, *report(logits, labels, last))
    assert [(line["step"], line["samples"]) for line in recorded.lines] == [(8, 96), (9, 100), (10, 112), (18, 200)]


def test_metrics_of_several_tasks_have_their_labels(recording: Recording) -> None:
    recorded = recording(ranks=1, labels=("click", "buy"))
    logits, labels = samples_of(0, 1, tasks=2)
    recorded.record.add_report(0, 1, *report(logits, labels, last=STEPS))
    (line,) = recorded.lines
    figures = set(quality(ScoreHistogram(1)))
    assert {key for key in line if "_click" in key or "_buy" in key} == {
        f"{window}{figure}_{label}" for window, figure, label in product(("", "window_"), figures, ("click", "buy"))
    }
    assert figures.isdisjoint(line)
    scores = ScoreHistogram(2)
    scores.add(logits, labels)
    for task, label in enumerate(("click", "buy")):
        assert (line[f"auc_{label}"], line[f"log_loss_{label}"]) == (scores.auc(task), scores.log_loss(task))
    assert line["loss"] == pytest.approx((line["log_loss_click"] + line["log_loss_buy"]) / 2)


def test_speed_is_samples_over_the_time_of_the_slowest_rank(recording: Recording) -> None:
    recorded = recording(ranks=2)
    for rank, seconds in ((0, 0.5), (1, 2.0)):
        recorded.record.add_report(rank, 1, *report(*samples_of(rank, 1), last=1, seconds=seconds))
    samples = sum(len(samples_of(rank, 1)[1]) for rank in range(2))
    [line] = read_journal(recorded.folder / METRICS)
    assert line["samples_per_s"] == round(samples / 2.0, 1)


def test_a_line_has_the_greatest_peak_of_memory_of_its_gpus(recording: Recording) -> None:
    recorded = recording(ranks=2)
    for number, peaks in enumerate([(None, None), (5, 7)], 1):
        for rank, peak in enumerate(peaks):
            metrics, scores, own = made_up(rank, number)
            recorded.record.add_report(rank, number, replace(metrics, gpu_memory=peak), scores, own)
    assert [line.get("gpu_memory") for line in recorded.lines] == [None, 7]


def test_reports_too_far_ahead_are_refused(recording: Recording) -> None:
    recorded = recording(ranks=2)
    recorded.record.add_report(0, REPORTS_AHEAD, *made_up(0, 1))
    with pytest.raises(WireError, match=f"report {REPORTS_AHEAD + 1} arrived, but report 1 is still missing"):
        recorded.record.add_report(0, REPORTS_AHEAD + 1, *made_up(0, 1))
