"""A step of a network of sequences over all positions, one thread: ragged batches against padded ones.

Forward, loss with drawn negatives, and backward, of 128 users, two blocks, dim 64. Padded batches have the length that
the longest sequence may have. Lengths are geometric as those of Amazon's beauty products, and with `--ratings` those of
MovieLens 1M: the file ratings.parquet, a rating a row, with a column user_id.
"""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from scripts.measure import Given, Note
from scripts.measure.timing import alternate, compared

USERS, DIM, ITEMS, NEGATIVES, BATCHES = 128, 64, 12_000, 256, 2


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--ratings", help="ratings.parquet of MovieLens 1M, for its lengths")


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure each network on each law of lengths."""
    rng = np.random.default_rng(0)
    laws = {"beauty": (rng.geometric(1 / 8.9, 22_363), 50)}
    if given.ratings is not None:
        import pyarrow.parquet as pq

        users = pq.read_table(given.ratings, columns=["user_id"])["user_id"].to_numpy()
        laws["movielens"] = (np.unique(users, return_counts=True)[1], 200)
    for (law, (lengths, longest)), kind in [(law, kind) for law in laws.items() for kind in ("sasrec", "ligr", "hstu")]:
        note(f"{kind}, {law}")
        draws = [rng.choice(lengths, USERS).clip(max=longest) for _ in range(1 if given.quick else BATCHES)]
        sides = {name: _steps(kind, draws, longest, name == OURS) for name in (OURS, "padded")}
        timed = alternate(sides, 1 if given.quick else given.rounds)
        yield compared(f"{kind}, {law}", timed, sum(int(each.sum()) for each in draws) / 1e3, "thousand elements/s")


def _steps(kind: str, draws: list[NDArray[np.int64]], longest: int, is_ragged: bool) -> Callable[[], float]:
    """Return a function that computes gradients of one step for each of some draws of lengths."""
    import torch
    from pydantic import TypeAdapter

    from persia_cli.config.schema import Hstu, Ligr, SampledSoftmax, SasRec
    from persia_cli.kernels.toolchain.memory import retain_freed_memory
    from persia_cli.model.build import build_model
    from persia_cli.model.causal import CausalNetwork
    from persia_cli.model.ragged import padded
    from persia_cli.model.shape import FeatureShape, InputShape
    from persia_cli.training.inputs import GroupShape, Samples
    from persia_cli.training.next_item import NextItemStaging, next_item_losses
    from persia_cli.training.ragged_rows import RaggedRows
    from persia_cli.wire.messages import GroupRows

    torch.set_num_threads(1)
    retain_freed_memory()
    settings = {"kind": kind, "dim": DIM, "attend": {"item": ["past"]}, "layers": 2, "heads": 2, "dropout": 0.2}
    model: SasRec | Ligr | Hstu = TypeAdapter(SasRec | Ligr | Hstu).validate_python(settings)
    features = (FeatureShape("item", DIM, "sum"), FeatureShape("past", DIM, "none", longest))
    network = build_model(model, InputShape(0, features, 1), seed=0)
    assert isinstance(network, CausalNetwork)
    drawn = FeatureShape("negatives", DIM, "negatives")
    staging = NextItemStaging(
        SampledSoftmax(kind="sampled_softmax", negatives=NEGATIVES), [GroupShape(DIM, (*features, drawn))]
    )
    rng, batches = np.random.default_rng(1), []
    for lengths in draws:
        counts = [*[1] * USERS, *lengths, NEGATIVES, *[0] * (USERS - 1)]
        unique, inverse = np.unique(rng.integers(0, ITEMS, sum(counts)), return_inverse=True)
        leaf = torch.from_numpy(rng.standard_normal((unique.size, DIM), np.float32) * np.float32(0.1))
        group = GroupRows(
            [leaf.numpy().view(np.uint8)], inverse.astype(np.int32), np.cumsum([0, *counts]).astype(np.uint32)
        )
        ones = np.ones((USERS, 1), np.float32)
        samples = Samples(ones[:, :0], ones, None, [float(lengths.sum())], drawn_share=NEGATIVES / ITEMS)
        positions = staging.positions(samples, [group], seed=0)
        step = staging.stage(positions, slice(0, USERS), torch.tensor)
        mask = torch.arange(longest) < torch.from_numpy(lengths).unsqueeze(1)
        order = torch.argsort(step.samples * longest + longest - step.sequences.layout.ages[step.slots])
        whole = replace(
            step,
            sequences=RaggedRows(
                USERS,
                torch.zeros(mask.shape, dtype=torch.int64)
                .masked_scatter(mask, torch.from_numpy(positions.rows))
                .flatten(),
                padded(mask),
                newest=torch.arange(USERS) * longest + torch.from_numpy(lengths) - 1,
                owners=torch.arange(USERS),
            ),
            slots=mask.flatten().nonzero().squeeze(1),
            targets=step.targets[order],
            samples=step.samples[order],
            hits=(torch.argsort(order)[step.hits[0]], step.hits[1]),
        )
        batches.append((samples, group, leaf.requires_grad_(), whole))

    def run() -> float:
        total = 0.0
        for samples, group, leaf, step in batches:
            if is_ragged:
                # Its plan is part of its cost.
                step = staging.stage(staging.positions(samples, [group], seed=0), slice(0, USERS), torch.tensor)
            states = network(step.sequences.read(leaf))
            _, losses = next_item_losses(network, states, step, leaf, 1.0)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            total += float(losses.detach().sum())
        return total

    return run
