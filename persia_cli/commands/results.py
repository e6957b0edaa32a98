"""The results of a finished job: its evaluation, the places of its files, and the next command."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import msgspec
from rich.console import Console

from persia_cli.commands.output import OUTPUT
from persia_cli.commands.screen import err, key_values, labelled, out, propose, say, say_json, size
from persia_cli.commands.screen_tables import columns, print_whole
from persia_cli.config.schema import Bce, Run
from persia_cli.engines.engine import engine_of
from persia_cli.engines.job import JobResult
from persia_cli.engines.resumed import newest_of
from persia_cli.errors import count
from persia_cli.metric import is_of_retrieval, keys_of
from persia_cli.observe import staleness
from persia_cli.observe.advice import advice
from persia_cli.observe.exchange import bytes_per_sample, lookups, table_counters
from persia_cli.observe.giveaway import giveaway
from persia_cli.observe.history import QUALITY
from persia_cli.observe.outcome import as_used, calibration_at, correction
from persia_cli.plan.job import JobPlan
from persia_cli.storage.locations import location_of
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


def show_results(plan: JobPlan, result: JobResult, as_json: bool = False) -> None:
    """Print the best evaluation, else the last, and after training the saved files and the next command."""
    if plan.job.task == "predict":
        show_scores(out(), next(event for event in reversed(result.events) if event["event"] == "scored"))
        if fraction := unknown(result.events):
            labelled(err(), "unknown", fraction)
        labelled(err(), "saved", plan.job.output)
        run_dir = plan.run_dir.parents[1]
        propose(err(), f"persia export {quote(str(run_dir))} -o {quote(plan.run.name)}")
        return
    evaluation = best_of(result) or last_of(result.metrics, plan.job.scored_part)
    corrections = corrections_in(plan, result, evaluation)
    if plan.facts.stand_in:
        labelled(err(), "data", plan.facts.source)
    if evaluation:
        evaluation = dict(as_used(evaluation, result.events))
        if as_json:
            say_json(without_time(evaluation))
        else:
            show_evaluation(out(), evaluation, plan)
        for each in corrections:
            of = "" if len(plan.run.dataset.label_names) == 1 else f"{each['label']} "
            labelled(err(), "calibrated", f"{of}by {correction(each)}")
        for text in [] if plan.run.is_for_retrieval else undefined(evaluation):
            labelled(err(), "note", text)
        if plan.job.task == "train" and (sentence := worse_than_the_mean(plan.run, evaluation)):
            labelled(err(), "note", sentence)
        if not plan.facts.stand_in and (sentence := giveaway(plan.run, evaluation)):
            labelled(err(), "note", sentence)
    elif training := last_of(result.metrics, "train"):
        say(out(), key_values(in_words(training)))
    saved = [event["path"] for event in result.events if event["event"] == "saved"]
    if not saved and plan.job.task == "train":  # the last start of a job that went back may have saved nothing new
        newest = newest_of(checkpoints_of(result.run_dir, plan.run.checkpoint.path))
        saved = [] if newest is None else [str(newest)]
    if losses := lost(result.events):
        more = f"; see persia table stats {result.run_dir}" if saved and plan.job.task == "train" else ""
        labelled(err(), "tables", losses + more)
    if OUTPUT.verbose and (fraction := unknown(result.events)):
        labelled(err(), "unknown", fraction)
    if OUTPUT.verbose and plan.job.task == "train" and (exchanged := traffic(plan, result)):
        labelled(err(), "wire", exchanged)
    if plan.job.task == "train" and (
        chosen := best_checkpoint(checkpoints_of(result.run_dir, plan.run.checkpoint.path))
    ):
        labelled(err(), "best", str(chosen))
    labelled(err(), "metrics", str(result.run_dir / "metrics.jsonl"))
    is_real = plan.job.task == "train" and not plan.facts.stand_in
    if is_real and (sentence := advice(plan.run, plan.job.steps, plan.job.train_rows, result.metrics)):
        labelled(err(), "advice", sentence)
    if plan.job.task == "train" and not engine_of(plan.run.cluster).record_is_here:
        # The checkpoints may be on the other machine only.
        propose(err(), f"persia report {quote(str(result.run_dir))}")
    elif saved and plan.job.task == "train" and plan.job.eval_steps and not plan.facts.test_rows:  # scored next
        propose(err(), f"persia eval {quote(str(result.run_dir))}")
    elif plan.job.task == "evaluate":
        propose(err(), f"persia report {quote(str(plan.run_dir.parents[1]))}")


def corrections_in(plan: JobPlan, result: JobResult, evaluation: Mapping[str, Any] | None) -> Sequence[dict[str, Any]]:
    """Return the corrections of the model whose evaluation is shown: fitted by it, or loaded with the model."""
    if plan.job.task == "train":
        event = calibration_at(evaluation["step"], result.events) if evaluation else None
        return event["labels"] if event else []
    found: list[dict[str, Any]] = msgspec.to_builtins(calibration_of(plan.run, location_of(plan.job.load or "")))
    return found


def show_evaluation(console: Console, line: Mapping[str, Any], plan: JobPlan) -> None:
    """Print the metrics of an evaluation, the last or the best of the job: a table on a terminal, else every digit."""
    if not console.is_terminal:
        say(console, key_values(without_time(line)))
        return
    suffixes = [key.removeprefix(first) for first in ("auc", "rmse") for key in line if key.startswith(first)]
    figures = {key: word for key, word in QUALITY.items() if any(key + suffix in line for suffix in suffixes)}
    kind = "test " if line.get("split") == "test" else ""
    table = columns(f"{plan.facts.eval_rows:,} {kind}samples", *figures.values())
    best = f"best by {line['best_by']}, step {line['step']:,}" if "best_by" in line else ""
    calibrated = "calibrated" if line.get("calibrated") else ""
    for suffix in suffixes:
        name = "  ".join(word for word in (suffix.lstrip("_"), best, calibrated) if word)
        table.add_row(name, *(_figure(line[key + suffix]) if key + suffix in line else "" for key in figures))
    print_whole(console, table)
    if keys := [key for key in line if is_of_retrieval(key)]:
        ranked = columns("all items ranked", *keys)
        ranked.add_row(best or f"step {line['step']:,}", *(_figure(line.get(key)) for key in keys))
        print_whole(console, ranked)


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


def best_of(result: JobResult) -> dict[str, Any] | None:
    """Return the line of the best evaluation, and the metric it is the best by; None if no metric was asked for."""
    best = next((event for event in reversed(result.events) if event["event"] == "best"), None)
    if best is None:
        return None
    lines = (line for line in result.metrics if line["split"] == "eval" and line["step"] == best["step"])
    return {"best_by": best["metric"]} | next(lines)


def show_scores(console: Console, scored: Mapping[str, Any]) -> None:
    """Print the number of scored samples, and the distribution of each label's probabilities."""
    spread: Mapping[str, Mapping[str, float | None]] = scored["spread"]
    if not console.is_terminal:
        alone = len(spread) == 1
        words = {f"{key}{'' if alone else f'_{label}'}": v for label, line in spread.items() for key, v in line.items()}
        say(console, key_values({"rows": scored["rows"]} | words))
        return
    table = columns(f"{scored['rows']:,} samples scored", *next(iter(spread.values())))
    for label, line in spread.items():
        table.add_row(label, *map(_figure, line.values()))
    print_whole(console, table)


def lost(events: Sequence[Mapping[str, Any]]) -> str:
    """Return as text the rows that all servers evicted or refused, and the table with most of them; empty if none."""
    tables = table_counters(events)
    parts = []
    has_cold_tier = any("cold_rows" in counters for counters in tables.values())
    for counter, word in LOSSES.items():
        if counter == "evicted" and has_cold_tier:
            continue  # these rows are on disks
        counts = {name: counted for name, counters in tables.items() if (counted := counters.get(counter, 0))}
        if counts:
            most = max(counts, key=lambda name: counts[name])
            of = f"all of {most}" if len(counts) == 1 else f"{counts[most]:,} of {most}"
            parts.append(f"{word}: {sum(counts.values()):,} ({of})")
    return "; ".join(parts)


def unknown(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the fraction of look-ups in evaluation or prediction that found no row, also per feature, as text."""
    found = lookups(events)
    total, missed = sum(each.total for each in found), sum(each.total - each.known for each in found)
    if not missed:
        return ""
    of = ", ".join(f"{each.name} {1 - each.known / each.total:.2%}" for each in found if each.known < each.total)
    return f"{missed / total:.2%} of the ids scored have no row and count as zeros ({of})"


def traffic(plan: JobPlan, result: JobResult) -> str:
    """Return the bytes per sample between roles as text."""
    found = bytes_per_sample(result.events, result.metrics, plan.run.train.batch)
    shown = [
        f"{each.link} {size(each.total)}" + (f" ({each.shared:.0%} in shared memory)" if each.shared else "")
        for each in found
    ]
    return f"{', '.join(shown)} per sample" if shown else ""


def last_of(metrics: Sequence[dict[str, Any]], split: str) -> dict[str, Any] | None:
    """Return the last line of metrics of a split."""
    return next((line for line in reversed(metrics) if line["split"] == split), None)


def without_time(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line without the time it was written."""
    return {key: value for key, value in line.items() if key != "time"}


def staleness_of(line: Mapping[str, Any]) -> list[staleness.Histogram]:
    """Return the histogram of each rank in a line of training metrics, whose JSON has the numbers as texts."""
    return [{int(value): steps for value, steps in rank.items()} for rank in line["staleness"]]


def in_words(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics without its time, with its histograms of staleness as one word."""
    words = {"staleness": staleness.in_words(staleness_of(line))} if "staleness" in line else {}
    return without_time(line) | words


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
