"""A model that follows its data against a frozen one: AUC on the later half of 20 windows of MovieLens 1M, by seed.

    python -m scripts.measure windows --movielens ml-1m                  # the folder that the release unpacks to
    python -m scripts.measure windows --movielens ml-1m --model dcn_v2

The ratings in the order of their times are cut into 20 windows of as many rows. A training follows them, and scores
each window before it trains on it. The frozen model is its checkpoint after window 10. Both AUCs are means over windows
11 to 20. Each round is a whole job with another seed, from 11 on.
"""

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from persia_cli.errors import UserError
from scripts.measure import Given, Note
from scripts.measure.timing import measured

FIRST_SEED, WINDOWS, FROZEN = 11, 20, 10
BATCH = 1024
FEATURES = ("user", "movie", "gender", "age", "occupation")
MODELS = {
    "deepfm": ["model=deepfm", "model.hidden=[200,80]", "optimizer.embedding.lr=0.02"],
    "dcn_v2": ["model=dcn_v2", "model.hidden=[200,80]"],
    "ffnn": [],
}
"""Settings besides those of conf=movielens_1m."""
FOLLOWS = ["dataset.follow={rows: 1}", "dataset.split={kind: train}", "dataset.group_by=null", "eval.next=true",
           "train.until.idle_s=1", "checkpoint.keep=null"]  # fmt: skip


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--movielens", type=Path, required=True, help="the folder of the release, as the recipe has it")
    parser.add_argument("--model", choices=MODELS, default="deepfm", help="%(default)s")
    parser.set_defaults(rounds=5)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Cut the data into windows, and train with every seed."""
    with TemporaryDirectory(prefix="measure-windows-") as name:
        folder = Path(name)
        note(f"preparing {given.movielens}")
        _persia(folder, "recipe", "prepare", "movielens", "--input", given.movielens.absolute(), "--output", "whole")
        rows = _cut(folder)
        following, frozen = [], []
        for number in range(given.rounds):
            seed = FIRST_SEED + number
            note(f"{given.model}, seed {seed}")
            run = _follow(folder, MODELS[given.model], seed, rows)
            following.append(_following(run))
            frozen.append(_frozen(folder, run, rows))
            if abs(following[-1][0] - frozen[-1][0]) > 1e-6:
                raise UserError(f"seed {seed}: the checkpoint is not the model that has scored window {FROZEN + 1}")
            note(f"following - frozen {fmean(following[-1]) - fmean(frozen[-1]):+.5f}")
    yield from results(given.model, following, frozen)


def results(model: str, following: list[list[float]], frozen: list[list[float]]) -> Iterator[Result]:
    """Yield the AUC of each window, their means by seed, and how often the difference of these has its error."""
    case = f"ML-1M, {model}"
    for at in range(WINDOWS - FROZEN):
        values = {OURS: [seed[at] for seed in following], "frozen": [seed[at] for seed in frozen]}
        yield measured(f"{case}, window {FROZEN + 1 + at}", "AUC", values)
    means = {OURS: [fmean(seed) for seed in following], "frozen": [fmean(seed) for seed in frozen]}
    yield measured(f"{case}, windows {FROZEN + 1} to {WINDOWS}", "AUC", means)
    differences = [a - b for a, b in zip(*means.values(), strict=True)]
    if len(differences) > 1:
        error = max(stdev(differences) / sqrt(len(differences)), 1e-9)
        note = f"{fmean(differences):+.5f} ± {error:.5f} (standard error)"
        yield measured(f"{case}, difference of AUC", "AUC", {OURS: differences}, note)
        what = f"{case}, {len(differences)} seeds, following above frozen"
        yield measured(what, "standard errors", {OURS: [fmean(differences) / error]})


def _cut(folder: Path) -> int:
    """Write the windows, in the order of time; return the rows of one but the last, which may have a few more."""
    files = sorted((folder / "whole").glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file, columns=["label", "timestamp", *FEATURES]) for file in files])
    table = table.take(pa.array(np.argsort(table["timestamp"].to_numpy(), kind="stable")))
    rows = int(table.num_rows) // WINDOWS
    (folder / "windows").mkdir()
    for number in range(WINDOWS):
        window = table.slice(number * rows, rows if number < WINDOWS - 1 else None)
        pq.write_table(window, folder / "windows" / f"{number + 1:02}.parquet")
    return rows


def _follow(folder: Path, words: list[str], seed: int, rows: int) -> Path:
    """Train on all windows; return the run directory, which has a checkpoint after window 10."""
    run, steps = folder / "runs" / str(seed), -(-rows // BATCH)
    given = ["conf=movielens_1m", *words, f"train.batch_size={BATCH}", "dataset.path=windows", *FOLLOWS, f"seed={seed}"]
    saved = [f"checkpoint.every_steps={FROZEN * steps}", "cluster=embedded"]
    _persia(folder, "train", *given, *saved, "--run-dir", run)
    return run


def _following(run: Path) -> list[float]:
    """Return the AUC of each window after the tenth, before it was trained."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    scored = [line["auc"] for line in lines if line["split"] == "eval"]
    if len(scored) != WINDOWS:
        raise UserError(f"{run} has scored {len(scored)} windows, not {WINDOWS}")
    return scored[FROZEN:]


def _frozen(folder: Path, run: Path, rows: int) -> list[float]:
    """Return the AUC of the model after window 10 on each later window."""
    later = [folder / "windows" / f"{number:02}.parquet" for number in range(FROZEN + 1, WINDOWS + 1)]
    output, step = run / "frozen.parquet", FROZEN * -(-rows // BATCH)
    _persia(folder, "predict", run, *later, "--step", step, "-o", output, "--keep", "label", "--logits")
    scores = pq.read_table(output)
    places = np.minimum(np.arange(scores.num_rows) // rows, len(later) - 1)
    logits, labels = scores["label_logit"].to_numpy(), scores["label"].to_numpy()
    return [auc(logits[places == window], labels[places == window]) for window in range(len(later))]


def auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the AUC; equal scores count half."""
    values, place = np.unique(scores, return_inverse=True)
    positive, negative = (np.bincount(place[labels == label], minlength=values.size) for label in (1, 0))
    below = np.cumsum(negative) - negative
    return float(((below + negative / 2) * positive).sum() / (positive.sum() * negative.sum()))


def _persia(folder: Path, *words: object) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "persia_cli", *map(str, words)], cwd=folder, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise UserError(f"persia {words[0]} failed: {ended.stderr.strip()[-2000:]}")
