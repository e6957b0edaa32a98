"""Formulas of networks that read sequences, of two towers, and of several labels, step by step as in their papers."""

import torch

from tests.unit.model.plain_training import Plain, Tensor, relu, sigmoid, softmax


def sequence_mask(size: int) -> Tensor:
    """Return bool [n, 2]: every other sample has one element only."""
    return torch.arange(2) < (1 + torch.arange(size) % 2).unsqueeze(1)


def target_and_sequence(plain: Plain, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows [n, features, dim], of which the first is the target, a sequence [n, 2, dim], and its mask.

    The sequence has the rows of the other features, dropped by themselves.
    """
    return plain.embedded(rows), plain.embedded(rows[:, 1:]), sequence_mask(len(rows))


def din(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1706.06978, section 4.3."""
    rows, sequence, mask = target_and_sequence(plain, rows)
    target, interest = rows[:, 0], torch.zeros_like(rows[:, 0])
    for there, value in zip(mask.T, sequence.unbind(1), strict=True):
        x = plain.linear("readers.0.unit.0", torch.cat([value, target, value - target, value * target], dim=1))
        x = torch.where(x > 0, x, plain.weights["readers.0.unit.1.weight"] * x)
        interest = interest + there.unsqueeze(1) * plain.linear("readers.0.unit.2", x) * value
    return plain.perceptron("network", torch.cat([dense, *rows.unbind(1), interest], dim=1), hidden=2)


def recurrent(plain: Plain, prefix: str, values: Tensor, mask: Tensor, shares: Tensor) -> list[Tensor]:
    """arXiv 1809.03672, equations 2 to 5 and 13: states of a gated recurrent unit, the share of each update given."""
    state, states = torch.zeros_like(values[:, 0]), []
    for there, value, share in zip(mask.T, values.unbind(1), shares.T, strict=True):
        of_value = plain.linear(f"{prefix}.read", value).chunk(3, dim=1)
        of_state = plain.linear(f"{prefix}.keep", state).chunk(3, dim=1)
        update, reset = (sigmoid(of_value[gate] + of_state[gate]) for gate in (0, 1))
        update = share.unsqueeze(1) * update
        made = (1 - update) * state + update * torch.tanh(of_value[2] + reset * of_state[2])
        state = torch.where(there.unsqueeze(1), made, state)
        states.append(state)
    return states


def dien(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1809.03672, sections 4.2 and 4.3."""
    rows, sequence, mask = target_and_sequence(plain, rows)
    states = recurrent(plain, "readers.0.extract", sequence, mask, torch.ones(mask.shape))
    asked = plain.linear("readers.0.relevance", rows[:, 0])
    scores = [(state * asked).sum(1) for state in states]
    weights = [there * score.exp() for there, score in zip(mask.T, scores, strict=True)]
    shares = torch.stack(weights, dim=1) / sum(weights).unsqueeze(1)
    interest = recurrent(plain, "readers.0.evolve", torch.stack(states, dim=1), mask, shares)[-1]
    plain.auxiliary = 0.7 * next_element_losses(states[0], sequence, mask)
    return plain.perceptron("network", torch.cat([dense, *rows.unbind(1), interest], dim=1), hidden=2)


def next_element_losses(state: Tensor, sequence: Tensor, mask: Tensor) -> Tensor:
    """arXiv 1809.03672, equation 6, of the first state of each sample whose sequence has two elements."""
    losses = []
    for i, own in enumerate(sequence):
        at = (i + len(sequence) - len(sequence) // 2) % len(sequence)
        other = sequence[at, 1 if mask[at, 1] else 0]
        taken, left = (state[i] * own[1]).sum(), (state[i] * other).sum()
        known = mask[i, 1] and bool((own[1] != other).any())
        losses.append(-torch.log(sigmoid(taken)) - torch.log(1 - sigmoid(left)) if known else torch.zeros(()))
    return torch.stack(losses).unsqueeze(1)


def attended(plain: Plain, prefix: str, x: Tensor, mask: Tensor, causal: bool) -> Tensor:
    """arXiv 1706.03762, sections 3.2.1 and 3.2.2, of two heads: every token attends to all, or to those up to it."""
    parts = plain.linear(f"{prefix}.project", x).chunk(3, dim=2)
    found = []
    for i in range(x.shape[1]):
        heads = []
        for query, key, value in zip(*(part.chunk(2, dim=2) for part in parts), strict=True):
            seen = range(i + 1 if causal else x.shape[1])
            scores = [(query[:, i] * key[:, j]).sum(1) / query.shape[2] ** 0.5 for j in seen]
            weights = [mask[:, j] * score.exp() for j, score in zip(seen, scores, strict=True)]
            weighed = sum(weight.unsqueeze(1) * value[:, j] for j, weight in zip(seen, weights, strict=True))
            heads.append(weighed / sum(weights).unsqueeze(1))
        found.append(torch.cat(heads, dim=1))
    return plain.linear(f"{prefix}.last", torch.stack(found, dim=1))


def bst(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1905.06874, equations 2 to 5, two blocks; positions are counted from the target, the newest token."""
    rows, sequence, mask = target_and_sequence(plain, rows)
    positions, lengths = plain.weights["readers.0.positions.vectors"], mask.sum(1, keepdim=True)
    there = torch.cat([torch.ones(len(mask), 1, dtype=torch.bool), mask], dim=1)
    age = torch.cat([torch.zeros_like(lengths), (lengths - torch.arange(2)).clamp(0)], dim=1)
    x = torch.cat([rows[:, :1], sequence], dim=1) + positions[age]
    for number in range(2):
        prefix = f"readers.0.blocks.{number}"
        added = attended(plain, f"{prefix}.attention", x, there, causal=False)
        x = plain.over_columns(f"{prefix}.attended", x + plain.dropped(added, 0.3))
        inner = plain.linear(f"{prefix}.inner", x)
        added = plain.linear(f"{prefix}.outer", torch.where(inner > 0, inner, 0.01 * inner))
        x = plain.over_columns(f"{prefix}.norm", x + plain.dropped(added, 0.3))
    mean = (x * there.unsqueeze(2)).sum(1) / there.sum(1, keepdim=True)
    return plain.perceptron("network", torch.cat([dense, *rows.unbind(1), mean], dim=1), hidden=2)


def sasrec(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1808.09781, equations 1 to 6, two blocks; the newest element has the position 0."""
    candidate, sequence = plain.embedded(rows[:, :1])[:, 0], plain.embedded(rows[:, 1:])
    mask = sequence_mask(len(rows))
    age = (mask.sum(1, keepdim=True) - 1 - torch.arange(2)).clamp(0)
    x = plain.dropped(sequence + plain.weights["positions.vectors"][age], plain.style.dropout)
    for number in range(2):
        prefix = f"blocks.{number}"
        added = attended(plain, f"{prefix}.attention", plain.over_columns(f"{prefix}.before", x), mask, causal=True)
        x = x + plain.dropped(added, plain.style.dropout)
        inner = relu(plain.linear(f"{prefix}.inner", plain.over_columns(f"{prefix}.between", x)))
        inner = plain.dropped(inner, plain.style.dropout)
        x = x + plain.dropped(plain.linear(f"{prefix}.outer", inner), plain.style.dropout)
    newest = torch.where(mask[:, 1:], x[:, 1], x[:, 0])
    return (plain.over_columns("norm", newest) * candidate).sum(1, keepdim=True)


def two_tower(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """doi 10.1145/3298689.3346996, section 3.1: the last feature is the item's; the cosine over a temperature."""
    *user, item = plain.embedded(rows).unbind(1)
    one = plain.perceptron("user.network", torch.cat([dense, *user], dim=1), hidden=2)
    other = plain.perceptron("item.network", item, hidden=2)
    lengths = [(vector**2).sum(1, keepdim=True).sqrt() for vector in (one, other)]
    return (one / lengths[0] * other / lengths[1]).sum(1, keepdim=True) / 0.2


def mmoe(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """doi 10.1145/3219819.3220007, equations 5 to 7, for one task."""
    x = torch.cat([dense, *plain.embedded(rows).unbind(1)], dim=1)
    experts = plain.perceptron("experts", x.unsqueeze(0), hidden=2, output=False)
    mixed = mixture(plain.linear("gates", x), [*experts])
    return plain.perceptron("towers", mixed.unsqueeze(0), hidden=1)[0]


def mixture(scores: Tensor, experts: list[Tensor]) -> Tensor:
    """Return the sum of experts [n, width], each times its share by scores [n, experts]."""
    shares = softmax([*scores.T])
    return sum(share.unsqueeze(1) * own for share, own in zip(shares, experts, strict=True))


def ple(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """doi 10.1145/3383313.3412236, equations 5 to 8: two levels, two tasks with two experts each, one shared expert."""
    common = torch.cat([dense, *plain.embedded(rows).unbind(1)], dim=1)
    first = second = common
    for level in range(2):
        prefix = f"levels.{level}"
        read = torch.stack([first, first, second, second, common])
        experts = plain.perceptron(f"{prefix}.experts", read, hidden=2, output=False)
        one, other, shared = [*experts[:2]], [*experts[2:4]], experts[4]
        gates = plain.weights[f"{prefix}.gates.weight"]
        of_first = mixture(first @ gates[0], [*one, shared])
        of_second = mixture(second @ gates[1], [*other, shared])
        if level == 0:
            common = mixture(plain.linear(f"{prefix}.shared_gate", common), [*one, *other, shared])
        first, second = of_first, of_second
    return torch.cat([*plain.perceptron("towers", torch.stack([first, second]), hidden=1)], dim=1)


def esmm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1804.07931, equation 1: the second label's probability is the product of both towers'."""
    x = torch.cat([dense, *plain.embedded(rows).unbind(1)], dim=1)
    click, conversion = plain.perceptron("towers", x.unsqueeze(0), hidden=2)
    # p q / (1 - p q) = 1 / (exp(-a) + exp(-b) + exp(-a - b)), whose greatest power comes out first.
    powers = torch.stack([-click, -conversion, -click - conversion])
    most = powers.detach().max(0).values
    return torch.cat([click, -most - torch.log(torch.exp(powers - most).sum(0))], dim=1)
