"""Accuracy gates: the expected metric of every recipe, network and mode.

With the folder of real data sets in PERSIA_TEST_DATA (or at ../shared/data),

    python -m tests.accuracy.gates [--small] [--only TEXT]

prepares the data, trains every entry of tests/accuracy.yaml with each of its seeds and prints a table; the exit code
is 1 if an entry misses its expected value. The tests run the small entries, slow tests the others.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from persia_cli.data.prepare.recipe import PrepareOptions, load_recipe
from tests.conftest import shared_data
from tests.support.jobs import evaluation, train
from tests.support.taobao import write_taobao

FILE = Path(__file__).resolve().parents[1] / "accuracy.yaml"
GENERATED = {"taobao": lambda folder: write_taobao(folder, users=400, samples=20_000, seed=0)}
"""Generators of the raw files of recipes whose data is not available."""


class Entry(BaseModel):
    """A line of the table."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Entry):
    """A data set: a job's configuration, and the source of its rows; without a recipe they ship with persia."""

    conf: str
    recipe: str | None = None
    source: str | None = None
    """Path below the folder of real data sets; without one, data is generated."""
    min_count: PositiveInt = 1
    """As `persia recipe prepare --min-count`."""
    words: tuple[str, ...] = ()


class Gate(Entry):
    """The expected metric of a network on a data set in a mode: |mean over seeds - expected| <= tolerance."""

    data: str
    model: str
    mode: str
    metric: str = "auc"
    expected: float
    tolerance: PositiveFloat
    seeds: PositiveInt = 3
    small: bool = False
    """True for a gate that is quick enough for every run of the tests."""
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.data} {self.model} {self.mode}"

    def job(self, data: Data) -> list[str]:
        """Return the arguments of the job; those of the rows of a recipe are added elsewhere."""
        model = [] if self.model == "(own)" else [f"model={self.model}"]
        fixed = ["cluster=embedded", "checkpoint.at_end=false", f"mode={self.mode}"]
        return [f"conf={data.conf}", "train.epochs=1", *model, *data.words, *fixed, *self.words]


class Gates(Entry):
    """The whole file."""

    data: dict[str, Data]
    gates: Annotated[tuple[Gate, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Reached:
    """The results of a gate's runs, by seed."""

    gate: Gate
    values: NDArray[np.float64]

    @property
    def passed(self) -> bool:
        """True if the mean is within the tolerance."""
        return abs(float(self.values.mean()) - self.gate.expected) <= self.gate.tolerance

    def __str__(self) -> str:
        gate, spread = self.gate, self.values.std(ddof=1) if self.values.size > 1 else 0.0
        return (
            f"| {gate.data} | {gate.model} | {gate.mode} | {gate.metric} | {gate.expected:.4f} ± {gate.tolerance:g} "
            f"| {self.values.mean():.4f} ± {spread:.4f} | {'as expected' if self.passed else 'MISSED'} |"
        )


@cache
def read_gates() -> Gates:
    """Read tests/accuracy.yaml."""
    return Gates.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def prepared(data: Data, folder: Path, real: Path | None) -> Path | None:
    """Return the prepared rows of a data set below `folder`, prepared if necessary; None without raw data."""
    assert data.recipe is not None
    made = folder / data.conf
    if made.exists():
        return made
    if data.source is not None:
        source = real / data.source if real else None
    else:
        source = folder / f"{data.conf}-raw"
        GENERATED[data.recipe](source)
    if source is None or not source.exists():
        return None
    load_recipe(data.recipe).prepare(source, made, PrepareOptions(min_count=data.min_count), lambda done, total: None)
    return made


def run_gate(gate: Gate, folder: Path, real: Path | None) -> Reached | None:
    """Train with each seed; None if the data is not on this machine."""
    data = read_gates().data[gate.data]
    words = gate.job(data)
    if data.recipe is not None:
        rows = prepared(data, folder, real)
        if rows is None:
            return None
        words += [f"dataset.path='{rows}'"]
    with tempfile.TemporaryDirectory() as runs:
        ends = [evaluation(train([*words, f"seed={seed}"], Path(runs, str(seed)))) for seed in range(gate.seeds)]
    return Reached(gate, np.array([end[gate.metric] for end in ends]))


def chosen(small: bool, only: str) -> Iterator[Gate]:
    """Yield the gates whose line contains the text."""
    for gate in read_gates().gates:
        if (gate.small or not small) and only in str(gate):
            yield gate


def main() -> int:
    """Print the table, a line for each gate as soon as it has run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="only those that every run of the tests has")
    parser.add_argument("--only", default="", metavar="TEXT", help="only those whose 'data network mode' has this text")
    given = parser.parse_args()
    real, failed = shared_data(), 0
    print("| data | network | mode | metric | expected | reached | |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for gate in chosen(given.small, given.only):
            reached = run_gate(gate, Path(folder), real)
            print(reached or f"| {gate.data} | {gate.model} | {gate.mode} | | | | no data here |", flush=True)
            failed += reached is not None and not reached.passed
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
