"""The results of a finished job: its best evaluation, lost rows, metrics that are not defined, advice, what is next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import msgspec

from persia_cli.config.schema import Bce, Run
from persia_cli.engines.engine import engine_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.resumed import newest_of
from persia_cli.errors import count
from persia_cli.metric import keys_of
from persia_cli.observe.advice import advice, giveaway
from persia_cli.observe.exchange import LinkBytes, bytes_per_sample, lookups, table_counters
from persia_cli.observe.history import QUALITY
from persia_cli.observe.outcome import as_used, calibration_at
from persia_cli.plan.job import JobPlan
from persia_cli.storage.locations import Location, location_of
from persia_cli.store.checkpoints.manifest import calibration_of, checkpoints_of
from persia_cli.store.checkpoints.retention import best_checkpoint

LOSSES = {
    "dropped": "rows lost for lack of disk space",
    "evicted": "rows evicted",
    "refused": "ids refused for lack of space",
    "not_admitted": "ids not admitted",
    "gradients_refused": "gradients refused that were not finite",
}
"""Counters of the tables that are reported at the end, and their meaning."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class JobSummary:
    """The results of a training or an evaluation."""

    evaluation: Line | None
    """The best evaluation, else the last, with probabilities as the model gives them; None if there was none."""
    training: Line | None
    """The last metrics of training, in place of an evaluation."""
    corrections: Sequence[Line]
    """The calibration of the model whose evaluation this is, for each label."""
    notes: Sequence[str]
    """Sentences on metrics that are not defined, and on probabilities that are suspect or bad."""
    lost: str
    unknown: str
    traffic: Sequence[LinkBytes]
    """Bytes per sample between roles, of a training."""
    best: Location | None
    """The checkpoint that later commands use."""
    advice: str | None
    next_command: str | None


def summary_of(plan: JobPlan, result: JobResult) -> JobSummary:
    """Return the results of a training or an evaluation."""
    trains, run_dir = plan.job.task == "train", quote(str(result.run_dir))
    evaluation = _best_of(result) or _last_of(result.metrics, plan.job.scored_part)
    corrections = _corrections(plan, result, evaluation)
    if evaluation:
        evaluation = dict(as_used(evaluation, result.events))
    checkpoints = checkpoints_of(result.run_dir, plan.run.checkpoint.path)
    # The last start of a job that went back may have saved nothing new.
    is_saved = any(event["event"] == "saved" for event in result.events) or (
        trains and newest_of(checkpoints) is not None
    )
    lost = lost_rows(result.events)
    next_command = None
    if not trains:
        next_command = f"persia report {quote(str(plan.run_dir.parents[1]))}"
    elif not engine_of(plan.run.cluster).record_is_here:  # the checkpoints may be on the other machine only
        next_command = f"persia report {run_dir}"
    elif is_saved and plan.job.eval_steps and not plan.facts.test_rows:  # these are scored next
        next_command = f"persia eval {run_dir}"
    is_real = trains and not plan.facts.stand_in and plan.run.follows is None
    return JobSummary(
        evaluation=evaluation,
        training=None if evaluation else _last_of(result.metrics, "train"),
        corrections=corrections if evaluation else (),
        notes=_notes(plan, evaluation) if evaluation else (),
        lost=f"{lost}; see persia table stats {result.run_dir}" if lost and is_saved and trains else lost,
        unknown=unknown_ids(result.events),
        traffic=bytes_per_sample(result.events, result.metrics, plan.run.train.batch) if trains else (),
        best=best_checkpoint(checkpoints) if trains else None,
        advice=advice(plan.run, plan.job.steps, plan.job.train_rows, result.metrics) if is_real else None,
        next_command=next_command,
    )


def scores_of(result: JobResult) -> Line:
    """Return the event of a prediction's scores: their number, and for each label the spread of its probabilities."""
    return next(event for event in reversed(result.events) if event["event"] == "scored")


def _notes(plan: JobPlan, evaluation: Line) -> list[str]:
    notes = [] if plan.run.is_for_retrieval else undefined(evaluation)
    if plan.job.task == "train" and (sentence := worse_than_the_mean(plan.run, evaluation)):
        notes.append(sentence)
    if not plan.facts.stand_in and (sentence := giveaway(plan.run, evaluation)):
        notes.append(sentence)
    return notes


def _corrections(plan: JobPlan, result: JobResult, evaluation: Line | None) -> Sequence[Line]:
    """Return the corrections of the model whose evaluation is shown: fitted by it, or loaded with the model."""
    if plan.job.task == "train":
        event = calibration_at(evaluation["step"], result.events) if evaluation else None
        return event["labels"] if event else []
    labels: list[dict[str, Any]] = msgspec.to_builtins(calibration_of(plan.run, location_of(plan.job.load or "")))
    return labels


def _best_of(result: JobResult) -> dict[str, Any] | None:
    """Return the line of the best evaluation, and the metric it is the best by; None if no metric was asked for."""
    best = next((event for event in reversed(result.events) if event["event"] == "best"), None)
    if best is None:
        return None
    lines = (line for line in result.metrics if line["split"] == "eval" and line["step"] == best["step"])
    return {"best_by": best["metric"]} | next(lines)


def _last_of(metrics: Sequence[dict[str, Any]], split: str) -> dict[str, Any] | None:
    """Return the last line of metrics of a split."""
    return next((line for line in reversed(metrics) if line["split"] == split), None)


def lost_rows(events: Sequence[Mapping[str, Any]]) -> str:
    """Return as text the rows that all servers evicted or refused, and the table with most of them; empty if none."""
    tables = table_counters(events)
    parts = []
    has_cold_tier = any("cold_rows" in counters for counters in tables.values())
    for counter, meaning in LOSSES.items():
        if counter == "evicted" and has_cold_tier:
            continue  # these rows are on disks
        counts = {name: counted for name, counters in tables.items() if (counted := counters.get(counter, 0))}
        if counts:
            most = max(counts, key=lambda name: counts[name])
            of = f"all of {most}" if len(counts) == 1 else f"{counts[most]:,} of {most}"
            parts.append(f"{meaning}: {sum(counts.values()):,} ({of})")
    return "; ".join(parts)


def unknown_ids(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the fraction of look-ups in evaluation or prediction that found no row, also per feature, as text."""
    features = lookups(events)
    total, missed = sum(one.total for one in features), sum(one.total - one.known for one in features)
    if not missed:
        return ""
    of = ", ".join(f"{one.name} {1 - one.known / one.total:.2%}" for one in features if one.known < one.total)
    return f"{missed / total:.2%} of the ids scored have no row and count as zeros ({of})"


def undefined(line: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each label with undefined metrics of an evaluation, with the reason."""
    sentences = []
    for suffix in (key.removeprefix("r2") for key in line if key.startswith("r2")):
        if line["r2" + suffix] is None:
            of = f" of {suffix.removeprefix('_')}" if suffix else ""
            why = "no evaluation sample has weight" if line["rmse" + suffix] is None else "all its labels are the same"
            sentences.append(f"{QUALITY['r2']}{of}: not defined, because {why}")
    for suffix in (key.removeprefix("auc") for key in line if key.startswith("auc")):
        missing = [word for key, word in QUALITY.items() if line.get(key + suffix, 0.0) is None]
        if not missing:
            continue
        if line["log_loss" + suffix] is None:
            why = "no evaluation sample has the label, with a weight"
        elif line["pr_auc" + suffix] is None:
            why = "no evaluation sample is positive"
        elif line["auc" + suffix] is None:
            why = "no evaluation sample is negative"
        elif "GAUC" in missing:
            why = "no value of dataset.group_by has samples of both classes"
        else:
            why = "a logit is infinite"
        of = f" of {suffix.removeprefix('_')}" if suffix else ""
        sentences.append(f"{', '.join(missing)}{of}: not defined, because {why}")
    return sentences


def worse_than_the_mean(run: Run, line: Mapping[str, Any]) -> str | None:
    """Return a sentence on the labels whose probabilities are worse than their mean, where the loss is of these."""
    names = run.dataset.label_names
    keys = keys_of("ne", names)
    found = [
        (entropy, number)
        for number, (key, loss) in enumerate(zip(keys, run.losses, strict=True))
        if isinstance(loss, Bce) and loss.pos_weight == 1.0 and (entropy := line.get(key) or 0.0) > 1.0
    ]
    if not found:
        return None
    entropy, worst = max(found)
    more = f", and above 1 for {count(len(found) - 1, 'more label')}" if len(found) > 1 else ""
    return (
        f"NE of {names[worst]} is {entropy:.4g} at step {line['step']:,}{more}: the probabilities of this model are "
        f"worse than the mean label for every row, even if it ranks well; {_against_bad_probabilities(run, worst)}"
    )


def _against_bad_probabilities(run: Run, label: int) -> str:
    """Return what to change where the probabilities of a label are worse than their mean."""
    better = keys_of("log_loss", run.dataset.label_names)[label]
    if run.judging_metric == better:
        return "train longer if NE still falls; else use more regularisation (model.dropout, l2) or a lower rate"
    return (
        f"choose it by checkpoint.best_by={better}, or train with more regularisation (model.dropout, l2) or a lower "
        "learning rate"
    )
