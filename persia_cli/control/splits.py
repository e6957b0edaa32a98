"""The splits of a data set, as numbers on the wire and names in metrics."""

from typing import Literal

TRAIN = 0
EVAL = 1

SplitName = Literal["train", "eval"]

SPLIT_NAMES: dict[int, SplitName] = {TRAIN: "train", EVAL: "eval"}
