"""Train DLRM by Persia and by TorchRec in one process, alternating on the same batches, and print the speed of both.

    python scripts/compare_torchrec.py
    python scripts/compare_torchrec.py --dims 16 --source loader -- train.threads=2 dataset.path=data/criteo

Persia is the default job on this machine. TorchRec has an `EmbeddingBagCollection` that fuses the backward pass with
Adagrad or row-wise Adagrad (FBGEMM on the CPU), in one process with the same network, loss and dense optimizer. The
batches have 4,096 samples of Criteo's shape: the prepared data, or those of its generator while that is missing. Tables
of dim 64 have a fourth, and of dim 128 an eighth of Criteo's rows, so that all take about 2 GiB. The ratio is the
median over rounds, each of two neighbouring turns. Prints a table, and then the same in Markdown.

TorchRec needs a separate environment, since it asks for another FBGEMM and another torchmetrics than it needs:

    python -m venv torchrec && . torchrec/bin/activate
    pip install -e . torch==2.13.0 tensordict tqdm pyre-extensions iopath
    pip install --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from persia_cli.bench.compare import compare
from persia_cli.bench.machine import this_machine
from persia_cli.bench.result import Result
from persia_cli.commands.bench_views import noting, warn_of_others
from persia_cli.commands.screen import labelled, out, report_failure, say
from persia_cli.commands.tables import columns, print_table
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.errors import PersiaError
from persia_cli.observe.machine import this_processor
from scripts.measure import CRITEO

DIMS = (16, 64, 128)
OPTIMIZERS = ("adagrad", "rowwise_adagrad")
PRECISIONS = ("float32", "bfloat16") if this_processor().has_bfloat16 else ("float32",)
HEAD = (
    "model", "threads", "source", "Persia, samples/s", "TorchRec, samples/s", "Persia / TorchRec", "least", "most",
    "Persia, CPU ms/step", "TorchRec, CPU ms/step",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """A run, and the speed of both sides."""

    run: Run
    result: Result

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round."""
        ours, theirs = self.result.sides
        return [mine / other for mine, other in zip(ours.rates, theirs.rates, strict=True)]

    @property
    def cells(self) -> list[str]:
        """The line of a table, as HEAD names its columns."""
        run, sides, ratios = self.run, self.result.sides, self.ratios
        return [
            f"dim {run.model.dim}, {run.optimizer.embedding.kind}, {run.train.precision}",
            str(run.train.threads),
            self.result.case,
            *(f"{side.median:,.0f}" for side in sides),
            *(f"{ratio:.3f}" for ratio in (median(ratios), min(ratios), max(ratios))),
            *(f"{sum(side.cpu_ms.values()):.1f}" for side in sides),
        ]


def run_of(dim: int, optimizer: str, precision: str, words: Sequence[str]) -> Run:
    """Return the run that both sides train; `words` replace its settings."""
    sizes = [max(1, rows * DIMS[0] // dim) for rows in CRITEO] if dim > DIMS[0] else CRITEO
    return compose_run(
        [
            "conf=criteo",
            "cluster=local",
            "model=dlrm",
            f"model.dim={dim}",
            f"dataset.generator.cardinalities={[*sizes]}",
            f"optimizer={optimizer}",
            "train.batch_size=4096",
            f"train.precision={precision}",
            *words,
        ]
    )


def read_words(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS, choices=OPTIMIZERS)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=("float32", "bfloat16"))
    parser.add_argument("--source", default="ring", choices=("ring", "loader"), help="ring: batches in memory")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    parser.add_argument("--steps", type=int, default=32, help="steps that a turn measures")
    parser.add_argument("--ring", type=int, default=64, help="batches in memory")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="other settings of both sides, after --")
    return parser.parse_args(words)


def comparisons(chosen: argparse.Namespace) -> Iterator[Compared]:
    """Measure one run after the other."""
    note = noting(as_json=False)
    runs = [
        run_of(dim, optimizer, precision, chosen.words)
        for dim in chosen.dims
        for optimizer in chosen.optimizers
        for precision in chosen.precisions
    ]
    for run in runs:
        note(f"dim {run.model.dim}, {run.optimizer.embedding.kind}, {run.train.precision}")
        sizes = (chosen.steps, chosen.rounds, chosen.ring)
        for result in compare(run, ["torchrec"], [chosen.source], *sizes, note):
            yield Compared(run, result)


def rich_table(rows: Sequence[Compared]) -> Table:
    """Return the table for a terminal."""
    table = columns(*HEAD)
    for row in rows:
        table.add_row(*row.cells)
    return table


def markdown(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for row in rows:
        yield f"| {' | '.join(row.cells)} |"


def main(words: Sequence[str] | None = None) -> int:
    """Compare, print the tables, and return the exit code."""
    chosen = read_words(words)
    try:
        rows = list(comparisons(chosen))
    except PersiaError as error:
        return report_failure(error, debug=False)
    machine = this_machine()
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    labelled(out(), "machine", machine.processor)
    labelled(out(), "versions", f"Python {machine.python}, {libraries}")
    labelled(out(), "measured", f"{chosen.rounds} alternating rounds of {chosen.steps} steps; medians")
    print_table(out(), rich_table(rows))
    for line in markdown(rows):
        say(out(), line)
    warn_of_others([row.result for row in rows])
    return 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="torch|fbgemm_gpu")
    logging.disable(logging.WARNING)
    sys.exit(main())
