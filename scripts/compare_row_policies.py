"""Compare what a full table can do with a new id (`embedding.when_full`): AUC at parts of the memory that it needs.

    python scripts/compare_row_policies.py movielens=PREPARED/movielens_1m criteo=PREPARED/criteo zipf --seeds 1

Each data set is a folder that `persia recipe prepare` has written, under a name of your own, or `zipf`, which is
generated. First a run with space for all ids shows how much memory they need: that of their rows and index without any
counts of look-ups. Then each policy trains with the same settings at parts of that memory. Prints a Markdown table of
the AUC of the evaluation, and of the share of ids in it that had no row; several seeds are averaged.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from persia_cli.store.layout import RowOptimizer, bytes_per_row  # noqa: E402

POLICIES = ("auto", "evict_lfu", "evict_lru", "refuse")
DIM, LR = 16, 0.05
TRAINING = (
    "conf=base", f"model={{kind: deepfm, dim: {DIM}, hidden: [64, 32]}}", "optimizer=rowwise_adagrad",
    f"optimizer.embedding.lr={LR}", "optimizer.dense={kind: adam, lr: 0.001}", "train.batch_size=512",
    "train.epochs=1", "cluster=embedded", "mode=sync", "checkpoint.at_end=false", "train.threads=1",
)  # fmt: skip
ZIPF = (
    "dataset=synthetic", "dataset.generator.train_rows=60000", "dataset.generator.eval_rows=20000",
    "dataset.generator.zipf=1.05", "dataset.generator.cardinalities=[100, 10000, 20000, 50000]",
    "dataset.generator.signal=3",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The last evaluation of a run."""

    auc: float
    unknown: float
    rows: int


def trained(data: tuple[str, ...], *settings: str) -> Outcome:
    """Train a job and return its last evaluation; exits with the job's own error if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "persia_cli", "train", *TRAINING, *data, *settings, "--run-dir", str(run_dir)]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if ended.returncode:
            sys.exit(f"{' '.join(command)}\n{ended.stderr[-2000:]}")
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    line: dict[str, Any] = next(each for each in reversed(lines) if each["split"] == "eval")
    return Outcome(line["auc"], line["unknown"], line["rows"])


def main(words: list[str] | None = None) -> None:
    """Run all jobs, one after the other, and print each line at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="NAME=FOLDER, or zipf")
    parser.add_argument("--policies", default=",".join(POLICIES[1:]), help="values of embedding.when_full, by commas")
    parser.add_argument("--parts", default="10,25,50", help="percent of the memory that is needed, by commas")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(words)
    policies = given.policies.split(",")
    print("| data | memory | " + " | ".join(policies) + " |")
    print("|---" * (2 + len(policies)) + "|", flush=True)
    row_bytes = bytes_per_row(DIM, "float32", RowOptimizer("rowwise_adagrad", LR))
    for each in given.data:
        name, _, folder = each.partition("=")
        data = (f"dataset={Path(folder).resolve() / 'dataset.yaml'}",) if folder else ZIPF
        whole = [trained(data, f"seed={seed}", "embedding.when_full=refuse") for seed in range(given.seeds)]
        print(f"| {name} | all | {_cell(whole)} |" + " |" * (len(policies) - 1), flush=True)
        for part in map(int, given.parts.split(",")):
            memory = f"embedding.memory={int(whole[0].rows * row_bytes * part / 100)}"
            cells = []
            for policy in policies:
                setting = f"embedding.when_full={policy}"
                cells.append(_cell([trained(data, f"seed={seed}", memory, setting) for seed in range(given.seeds)]))
            print(f"| {name} | {part} % | " + " | ".join(cells) + " |", flush=True)


def _cell(outcomes: list[Outcome]) -> str:
    return f"{fmean(each.auc for each in outcomes):.4f} ({fmean(each.unknown for each in outcomes):.1%})"


if __name__ == "__main__":
    main()
