"""Compare the embedding store with torch and FBGEMM: the whole embedding step of a batch, in one process, one thread.

    python scripts/compare_store.py                  # all comparisons, about half an hour
    python scripts/compare_store.py --only criteo --dims 16
    python scripts/compare_store.py --json | python scripts/targets.py

Ours does all that a batch needs from raw 64-bit ids: deduplication, look-up, pooling, its backward, update. torch
(`EmbeddingBag(sparse=True)`, all tables in one bag) and FBGEMM (`SplitTableBatchedEmbeddingBags`) get row numbers below
fixed table sizes. Before anything is timed, some steps of small tables must give the same weights on both sides. The
baselines are measured in their installed state; `--huge-pages` also gives their tables the memory that ours have.

FBGEMM is in the group `compare`: `pip install --group compare`, in a checkout.
Release 1.8.0 loads only with torch 2.13. Without it the script compares with torch.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from persia_cli.bench.baselines import parts
from persia_cli.bench.baselines.steps import Fbgemm, OneBag, has_fbgemm
from persia_cli.bench.machine import Neighbours, this_machine
from persia_cli.bench.result import Result
from persia_cli.commands.bench_views import print_json, warn_of_others
from scripts.bench import step_cases, stores
from scripts.bench.alternate import FULL, Scale
from scripts.bench.step_cases import NAMES, EmbeddingStep, Match, matches
from scripts.bench.stores import EPS, LR
from scripts.bench.views import describe, lines

SHAPES: dict[str, tuple[int, ...]] = {"criteo": stores.CRITEO, "10M": (10_000_000,), "1M": (1_000_000,)}
"""Rows of the tables, by the name of the comparison."""
SMALL = (3, 50, 400, 1000)
"""Table sizes on which agreement is checked."""
STEPS, SAMPLES, TOLERANCE = 5, 256, 1e-5


def agree(dim: int, match: Match) -> float:
    """Return the greatest difference of any weight after some steps from the same start; exit if it is too great."""
    rng = np.random.default_rng(11)
    ours = EmbeddingStep(SMALL, dim, match.kind, SAMPLES, sum(SMALL))
    begun = [ours.begin(feature, np.arange(values)) for feature, values in enumerate(SMALL)]
    if match.baseline == "torch":
        theirs = OneBag(SMALL, dim, match.kind, SAMPLES, LR, EPS)
        weights = np.split(theirs.weights, np.cumsum(SMALL)[:-1])
    else:
        theirs = Fbgemm(SMALL, dim, match.kind, SAMPLES, LR, EPS)
        weights = [each.detach().numpy() for each in theirs.weights()]
    for mine, other in zip(begun, weights, strict=True):
        other[...] = mine
    greatest = 0.0
    for _ in range(STEPS):
        ids = stores.batch(rng, SMALL, SAMPLES, skewed=True)
        gradient = rng.standard_normal((SAMPLES, len(SMALL), dim), np.float32)
        mine = ours.step(ours.ready(ids), gradient)
        other = theirs.step(theirs.ready(ids), parts.tensor(gradient)).detach().numpy()
        greatest = max(greatest, float(np.abs(mine - other).max()))
    for feature, other in enumerate(weights):
        greatest = max(greatest, float(np.abs(ours.rows_of(feature, np.arange(SMALL[feature])) - other).max()))
    if not greatest <= TOLERANCE:
        raise SystemExit(
            f"{match.baseline} {NAMES[match.kind]}, dim {dim}: weights differ by {greatest:.2g} after {STEPS} steps, "
            f"which is more than {TOLERANCE:g}; nothing was timed, because the results are wrong"
        )
    return greatest


def comparisons(scale: Scale, only: str | None, huge_pages: bool) -> Iterator[Result]:
    """Yield the results of every table shape, dim, kind of ids and baseline."""
    for shape, cardinalities in SHAPES.items():
        if only is not None and only not in shape:
            continue
        # A batch of one table has as many ids as one of all of Criteo's tables.
        sized = scale if len(cardinalities) > 1 else replace(scale, batch=scale.batch * 26)
        for dim in scale.dims:
            for skewed in (True, False):
                for match in matches():
                    for huge in (False, True) if huge_pages else (False,):
                        neighbours = Neighbours()
                        result = step_cases.compare(sized, cardinalities, dim, match, skewed, huge)
                        busy = round(neighbours.cores(), 2)
                        sides = [replace(side, busy_cores=busy) for side in result.sides]
                        yield replace(result, case=shape, sides=sides, rounds=scale.rounds)


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="SHAPE", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("--dims", type=int, nargs="+", default=list(FULL.dims))
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="alternating runs of each pair")
    parser.add_argument("--batch", type=int, default=FULL.batch, help="samples")
    parser.add_argument("--huge-pages", action="store_true", help="measure baselines on huge pages too")
    parser.add_argument("--check", action="store_true", help="check that results agree, time nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> None:
    """Check the values, then measure."""
    chosen = options()
    warnings.filterwarnings("ignore", module="torch|fbgemm_gpu")
    parts.one_thread()
    print(describe(this_machine()), file=sys.stderr)
    if not has_fbgemm():
        print("FBGEMM is not installed (pip install --group compare): comparing with torch only", file=sys.stderr)
    for dim in chosen.dims:
        for match in matches():
            print(
                f"{match.baseline} {NAMES[match.kind]}, dim {dim}: weights agree to {agree(dim, match):.1g}",
                file=sys.stderr,
            )
    if chosen.check:
        return
    scale = replace(FULL, rounds=chosen.rounds, dims=tuple(chosen.dims), batch=chosen.batch)
    results = []
    for result in comparisons(scale, chosen.only, chosen.huge_pages):
        results.append(result)
        if not chosen.json:
            print(*lines(result), sep="\n", flush=True)
    if chosen.json:
        print_json("kernels", results, quick=False)
    warn_of_others(results)


if __name__ == "__main__":
    main()
