"""A trainer of next items in one process, for comparison: plain torch, with all rows and their Adam in one table.

It trains the network of a job on its batches, ragged as the job does, but has no servers, no wire and no late updates.
"""

from time import perf_counter
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding

from persia_cli.config.schema import Adam, Run, SampledSoftmax
from persia_cli.config.schema.sequences import Sequential
from persia_cli.model.build import build_model
from persia_cli.model.ragged import RaggedLayout, Tokens, plan
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.plan.columns import sparse_features
from persia_cli.training.device import prepare_torch
from persia_cli.training.optimizer import dense_optimizer

Numbers = NDArray[np.int64]


class Histories(NamedTuple):
    """The items of all users, numbered, user after user and oldest first; the last of a user is a target alone."""

    items: Numbers
    stops: Numbers
    """End of each user's items."""
    known: int
    """Number of different items."""


def read_histories(path: str, longest: int) -> Histories:
    """Read the training rows of data that the recipe next_item has prepared, with lists of at most `longest` items."""
    table = pq.read_table(path, columns=["item", "last_items"], filters=[("part", "=", "train")])
    users = zip(table["last_items"].to_pylist(), table["item"].to_pylist(), strict=True)
    lists = [np.array([*last[-longest:], item], np.int64) for last, item in users]
    known, items = np.unique(np.concatenate(lists), return_inverse=True)
    return Histories(items, np.cumsum([each.size for each in lists]), known.size)


class Rows:
    """The rows of all items with Adam's two moments, which a step changes for its own items alone."""

    def __init__(self, count: int, dim: int, bound: float, settings: Adam) -> None:
        assert settings.lr != "auto"
        self._settings, self._rate, self._steps = settings, settings.lr, 0
        self._rows = torch.empty(count, dim).uniform_(-bound, bound)
        self._first, self._second = torch.zeros(2, count, dim)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of distinct ids, as a leaf for gradients."""
        return self._rows[ids].requires_grad_()

    def update(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Take a step of these rows."""
        one, two = self._settings.beta1, self._settings.beta2
        self._steps += 1
        first = self._first[ids].lerp_(gradients, 1.0 - one)
        second = self._second[ids].mul_(two).addcmul_(gradients, gradients, value=1.0 - two)
        self._first[ids], self._second[ids] = first, second
        root = (second / (1.0 - two**self._steps)).sqrt_().add_(self._settings.eps)
        self._rows[ids] -= self._rate / (1.0 - one**self._steps) * first / root


def samples_per_s(run: Run, path: str, epochs: int) -> float:
    """Train for some epochs as `run` describes; return the users trained per second."""
    model, loss, rates = run.model, run.losses[0], run.optimizer.embedding
    assert isinstance(model, Sequential)
    assert isinstance(loss, SampledSoftmax)
    assert isinstance(rates, Adam)
    prepare_torch(1)
    [longest] = [feature.max_length or 1 for feature in sparse_features(run) if feature.name == model.sequence]
    histories = read_histories(path, longest)
    features = FeatureShape(model.candidate, model.dim, "sum"), FeatureShape(model.sequence, model.dim, "none", longest)
    network = build_model(model, InputShape(0, features, 1), run.seed).train()
    dense = dense_optimizer(run.optimizer.dense, network)
    rows = Rows(histories.known, model.dim, run.embedding.init_bound, rates)
    draw, users = np.random.default_rng(run.seed), histories.stops.size
    lengths = np.diff(histories.stops, prepend=0) - 1
    begin = perf_counter()
    for _ in range(epochs):
        for chosen in np.split(draw.permutation(users), range(run.train.batch, users, run.train.batch)):
            slots = plan(lengths[chosen])
            real = np.flatnonzero(slots.age >= 0)
            ages = slots.age.clip(min=0)
            places = histories.stops[chosen][slots.sequence] - 2 - ages
            negatives = np.unique(draw.integers(0, histories.known, loss.negatives))
            parts = histories.items[places], histories.items[places[real] + 1], negatives
            ids, found = np.unique(np.concatenate(parts), return_inverse=True)
            ends = np.cumsum([each.size for each in parts[:-1]])
            inputs, targets, drawn = (torch.from_numpy(each) for each in np.split(found, ends))
            unique = torch.from_numpy(ids)
            leaf = rows.look_up(unique)
            layout = RaggedLayout(slots.sizes, slots.widths, torch.from_numpy(ages))
            states = network(Tokens(embedding(inputs, leaf), layout))[torch.from_numpy(real)]
            own = (states * embedding(targets, leaf)).sum(1)
            scores = states @ embedding(drawn, leaf).T - float(np.log(loss.negatives / histories.known))
            scores = scores.masked_fill(targets.unsqueeze(1) == drawn, -torch.inf)
            dense.zero_grad()
            (torch.logaddexp(scores.logsumexp(1), own) - own).mean().backward()
            dense.step()
            assert leaf.grad is not None
            rows.update(unique, leaf.grad)
    return epochs * users / (perf_counter() - begin)
