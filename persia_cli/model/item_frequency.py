"""The probability that a batch has an item, estimated from the stream of batches, in the network's state.

Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019, section 4.
"""

import torch
from torch import nn

NAME = "item_frequency"


class ItemFrequency(nn.Module):
    """The mean number of steps from one batch with an item to the next, whose inverse is its probability.

    Algorithm 2 of the paper, with one array of buckets: an item of step t whose previous step is s updates
    B := (1 - rate) B + rate (t - s). Its first step is its first estimate, where the paper does not define the initial
    B. An item that occurs several times in a step counts once, since B is about batches.
    """

    steps: torch.Tensor
    last: torch.Tensor
    gap: torch.Tensor

    def __init__(self, buckets: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(buckets, dtype=torch.int32))
        self.register_buffer("gap", torch.zeros(buckets))

    def observe(self, keys: torch.Tensor) -> None:
        """Count a step whose samples, of all ranks, have the items int64 [n]."""
        self.steps += 1
        where = torch.unique(keys % len(self.gap))
        last, gap = self.last[where], self.gap[where]
        since = (self.steps - last).to(gap.dtype)
        self.gap[where] = torch.where(last > 0, (1.0 - self.rate) * gap + self.rate * since, since)
        self.last[where] = self.steps.to(last.dtype)

    def log_probability(self, keys: torch.Tensor) -> torch.Tensor:
        """Return float32 [n], the logarithm of the probability that a batch has each item int64 [n].

        A new item is treated as one that occurs in the next batch.
        """
        where = keys % len(self.gap)
        unseen = (self.steps + 1).to(self.gap.dtype)
        return -torch.log(torch.where(self.last[where] > 0, self.gap[where], unseen))


def count_items(network: nn.Module, buckets: int, rate: float) -> None:
    """Make a network count the frequency of items, in buffers that are saved with its weights."""
    network.add_module(NAME, ItemFrequency(buckets, rate))


def item_frequency_of(network: nn.Module) -> ItemFrequency | None:
    """Return a network's counters of items; None if it does not count them."""
    part = getattr(network, NAME, None)
    return part if isinstance(part, ItemFrequency) else None
