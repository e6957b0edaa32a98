"""The rivals of a first result: logistic regression and gradient boosting, as their users would begin with them."""

from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

STOPPING = 0.15
"""Part of the training rows that stops LightGBM and chooses its leaves."""


def logistic(rows: pd.DataFrame, labels: Any, scored: pd.DataFrame) -> Any:
    """Return the probability of each scored row: texts as one-hot, numbers standardised, medians for nulls."""
    numbers, texts = _columns(rows)
    made = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            ("texts", OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5), texts),
        ]
    )
    return make_pipeline(made, LogisticRegression(max_iter=5000)).fit(rows, labels).predict_proba(scored)[:, 1]


def boosted(rows: pd.DataFrame, labels: Any, scored: pd.DataFrame, seed: int) -> Any:
    """Return the probability of each scored row by LightGBM of 7 or 31 leaves, the better on the rows that stop it."""
    rows, scored = rows.copy(), scored.copy()
    for name in _columns(rows)[1]:
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
    return best.predict_proba(scored)[:, 1]


def _columns(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the columns of numbers, and the others."""
    numbers = [name for name in rows if pd.api.types.is_numeric_dtype(rows[name])]
    return numbers, [name for name in rows if name not in numbers]
