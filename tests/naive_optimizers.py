"""Slow, plain twins of the row optimizers: float32 throughout, in the kernels' order, so that every bit is the same."""

from math import sqrt

import numpy as np

from tests.naive import (
    GOLDEN,
    MASK,
    int8_values,
    mix,
    to_bfloat16,
    to_bfloat16_at_random,
    to_float16_at_random,
    to_int8_row,
)

F32 = np.float32


def rounded(values, dtype):
    """float32 values as stored in rows of a dtype, rounded to nearest."""
    if dtype == "bfloat16":
        return to_bfloat16(values)
    if dtype == "int8":
        rows = np.reshape(values, (-1, np.shape(values)[-1]))
        return np.array([int8_values(*to_int8_row(row)) for row in rows], F32).reshape(np.shape(values))
    return np.asarray(values).astype(dtype).astype(F32)


def rounded_at_random(values, dtype, start):
    """float32 values as stored in rows of a dtype after a change, rounded by the noise that begins at `start`."""
    if dtype == "float32":
        return values
    if dtype == "int8":
        return int8_values(*to_int8_row(values, start))
    rounded = to_bfloat16_at_random if dtype == "bfloat16" else to_float16_at_random
    return np.array([rounded(value, start, column) for column, value in enumerate(values)], F32)


def noise_start(seed, step, key):
    """32 bits from which a row's rounding draws at a step."""
    return mix(mix(seed % 2**64 ^ (step + 1) * GOLDEN & MASK) ^ key) & 2**32 - 1


def initial_states(optimizer, embedding):
    """States {name: float32[columns]} of a new row."""
    start = dict.fromkeys(("adagrad_sum", "adagrad_row_sum", "ftrl_n"), optimizer.initial_accumulator_value)
    states = optimizer.states(embedding.size)
    return {name: np.full(columns, start.get(name, 0.0), F32) for name, columns in states.items()}


def sum_of_squares(values):
    """Sixteen partial sums, then halves added to halves."""
    lanes = np.zeros(16, F32)
    for start in range(0, values.size, 16):
        part = values[start : start + 16]
        lanes[: part.size] += part * part
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes[0]


def clipped(gradient, norm):
    """A gradient scaled down to a Euclidean norm, if there is a limit."""
    if norm is None or np.sqrt(sum_of_squares(gradient)) <= F32(norm):
        return gradient
    return gradient * (F32(norm) / np.sqrt(sum_of_squares(gradient)))


def change(optimizer, embedding, states, gradient, step):
    """float32[dim]: the embedding after a finite gradient, before rounding; `states` change in place."""
    lr = optimizer.lr * optimizer.schedule.at(step)
    gradient = clipped(gradient, optimizer.clip_norm)
    weights = CHANGES[optimizer.kind](optimizer, lr, embedding, states, gradient, step)
    if optimizer.weight_bound is not None:
        weights = np.clip(weights, -F32(optimizer.weight_bound), F32(optimizer.weight_bound))
    return weights


def sgd(optimizer, lr, w, states, g, step):
    """g += l2 w; w -= lr g."""
    return decayed(optimizer, lr, w) - F32(lr) * penalized(optimizer, w, g)


def penalized(optimizer, w, g):
    """The gradient with the L2 penalty's."""
    return g + F32(optimizer.l2) * w if optimizer.l2 else g


def decayed(optimizer, lr, w):
    """The weights after decay."""
    return F32(1 - lr * optimizer.weight_decay) * w if optimizer.weight_decay else w


def adagrad(optimizer, lr, w, states, g, step):
    """g += l2 w; s += g g; w -= lr g / (sqrt(s) + eps)."""
    g = penalized(optimizer, w, g)
    states["adagrad_sum"] += g * g
    return decayed(optimizer, lr, w) - F32(lr) * (g / (np.sqrt(states["adagrad_sum"]) + F32(optimizer.eps)))


def rowwise_adagrad(optimizer, lr, w, states, g, step):
    """g += l2 w; s += mean(g g); w -= lr / (sqrt(s) + eps) g."""
    g = penalized(optimizer, w, g)
    states["adagrad_row_sum"] += sum_of_squares(g) / F32(g.size)
    rate = F32(lr) / (np.sqrt(states["adagrad_row_sum"]) + F32(optimizer.eps))
    return decayed(optimizer, lr, w) - rate * g


def adam(optimizer, lr, w, states, g, step):
    """g += l2 w; m += (1-b1) (g - m); v += (1-b2) (g g - v); w -= corrected lr m / (sqrt(v) + eps)."""
    g = penalized(optimizer, w, g)
    m, v = states["adam_mean"], states["adam_square"]
    m += F32(1 - optimizer.beta1) * (g - m)
    v += F32(1 - optimizer.beta2) * (g * g - v)
    rate = F32(lr * sqrt(1 - optimizer.beta2 ** (step + 1)) / (1 - optimizer.beta1 ** (step + 1)))
    return decayed(optimizer, lr, w) - rate * (m / (np.sqrt(v) + F32(optimizer.eps)))


def rowwise_adam(optimizer, lr, w, states, g, step):
    """g += l2 w; v += (1-b2) (mean(g g) - v); w -= corrected lr / (sqrt(v) + eps) g."""
    g = penalized(optimizer, w, g)
    v = states["adam_row_square"]
    mean = np.minimum(sum_of_squares(g) / F32(g.size), np.finfo(F32).max)
    v += F32(1 - optimizer.beta2) * (mean - v)
    rate = F32(lr * sqrt(1 - optimizer.beta2 ** (step + 1))) / (np.sqrt(v) + F32(optimizer.eps))
    return decayed(optimizer, lr, w) - rate * g


def ftrl(optimizer, lr, w, states, g, step):
    """z += lr g - (sqrt(n + g g) - sqrt(n)) w; n += g g; w solves for z, 0 where |z| <= a l1, but stays where g is 0.

    a is the learning rate without its schedule.
    """
    l1, l2 = F32(optimizer.lr * optimizer.l1), F32(optimizer.lr * optimizer.l2)
    z, n = states["ftrl_z"], states["ftrl_n"]
    before = np.sqrt(n)
    n[:] = np.minimum(n + g * g, np.finfo(F32).max)
    z += F32(lr) * g - (np.sqrt(n) - before) * w
    excess = np.maximum(np.abs(z) - l1, F32(0))
    solution = F32(0) - np.copysign(excess / (F32(optimizer.beta) + np.sqrt(n) + l2), z)
    return np.where(g == 0, w, solution)


CHANGES = {
    "sgd": sgd,
    "adagrad": adagrad,
    "rowwise_adagrad": rowwise_adagrad,
    "adam": adam,
    "rowwise_adam": rowwise_adam,
    "ftrl": ftrl,
}
