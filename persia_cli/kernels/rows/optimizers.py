"""The optimizers of rows, each as a function that changes one row.

They compute in float32, without fused multiply-add. SGD, Adagrad and SparseAdam give the results of torch's for sparse
gradients, row-wise Adagrad those of FBGEMM's exact one. In formulas w is the embedding, g its gradient, and t counts
from 1. Decay, if any, multiplies w by 1 - lr * weight_decay before it changes, for all but FTRL.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from persia_cli.kernels.rows.halves import store_bfloat16_at_random, store_float16_at_random
from persia_cli.kernels.rows.rows import BFLOAT16, FLOAT32, INT8, LANES, ZERO, embedding_lanes
from persia_cli.kernels.rows.splitmix import GOLDEN, mix64
from persia_cli.kernels.toolchain.compile import inlined
from persia_cli.kernels.toolchain.simd import (
    absolute,
    finite,
    greater,
    load,
    smaller,
    splat,
    square_root,
    store,
    total,
    where_zero,
    with_sign_of,
)

F32, U64 = types.float32, types.uint64
REFUSED = np.float32(-1.0)
GREATEST = np.finfo(np.float32).max


class Rule(NamedTuple):
    """The settings of an optimizer at one step; settings that its kind does not have are 0."""

    lr: np.float32
    """Learning rate at the step; for both kinds of Adam with their bias corrections."""
    eps: np.float32
    mean_rate: np.float32
    """Share of a gradient in its new running mean: 1 - beta1."""
    square_rate: np.float32
    """Share of a squared gradient in its new running mean: 1 - beta2."""
    beta: np.float32
    """FTRL: beta."""
    l1: np.float32
    """FTRL: l1 times the learning rate without its schedule."""
    l2: np.float32
    """FTRL: l2 times the learning rate without its schedule; others: multiple of weights added to their gradient."""
    decay: np.float32
    """Factor of decay before the step: 1 - learning rate times weight decay."""
    clip: np.float32
    """Greatest Euclidean norm of a row's gradient; 0 for no limit."""
    bound: np.float32
    """Greatest magnitude of a weight; 0 for no limit."""
    plain: bool
    """True without decay, clip and bound, and without an `l2` that is added to gradients."""
    noise: np.uint64
    """Random seed of stochastic rounding: a function of the run's seed and the step."""


RULE = types.NamedTuple((F32,) * 10 + (types.boolean, U64), Rule)


def noise_of(seed: int, step: int) -> np.uint64:
    """Return the random seed of a step's stochastic rounding."""
    with np.errstate(over="ignore"):
        return mix64(np.uint64(seed % 2**64) ^ (np.uint64(step + 1) * GOLDEN))


@inlined
def _lanes(plain, dim, column):
    """Return the number of lanes from a column on."""
    return np.int64(16) if plain else np.int64(dim - column)


@inlined
def _weights(plain, rows, at, column, lanes):
    """Return lanes of the embedding of the row that starts at word `at`."""
    return load(rows.arena, at + column, lanes) if plain else embedding_lanes(rows, at, column, lanes)


@inlined
def _gradient(plain, rows, rule, at, column, gradients, start, scale):
    """Return lanes of the gradient, clipped, with `l2` times the weights added."""
    lanes = _lanes(plain, rows.dim, column)
    g = load(gradients, start + column, lanes) * scale
    if not plain and rule.l2 != np.float32(0.0):
        g = g + splat(rule.l2) * _weights(plain, rows, at, column, lanes)
    return g


@inlined
def _decayed(plain, rule, w):
    """Return weights after decay (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019)."""
    return w if plain or rule.decay == np.float32(1.0) else splat(rule.decay) * w


@inlined
def scale_of(plain, gradients, at, dim, clip):
    """Return the factor that clips a row's gradient to a norm of `clip`; REFUSED if a square is not finite."""
    sound = True
    squares = splat(np.float32(0.0))
    for column in range(ZERO, dim, LANES):
        g = load(gradients, at + column, _lanes(plain, dim, column))
        sound &= finite(g * g)
        if not plain and clip > np.float32(0.0):
            squares = squares + g * g
    if not sound:
        return REFUSED
    if not plain and clip > np.float32(0.0):
        norm = np.sqrt(total(squares))
        if norm > clip:
            return clip / norm
    return np.float32(1.0)


@inlined
def _change(plain, rows, rule, at, column, weight, lanes, noise):
    """Write changed weights, within the bound; 16-bit weights are rounded stochastically.

    Stochastic rounding as in Gupta et al., "Deep learning with limited numerical precision", 2015. Weights of INT8 rows
    go to `rows.line`, for `pack_line`: the row's scale depends on all of them.
    """
    # Rounding to nearest would lose all steps smaller than half a unit; stochastic rounding adds them up in the mean.
    if not plain and rule.bound > np.float32(0.0):
        weight = smaller(greater(weight, splat(-rule.bound)), splat(rule.bound))
    if plain or rows.storage == FLOAT32:
        store(rows.arena, at + column, weight, lanes)
    elif rows.storage == INT8:
        store(rows.line, column, weight, lanes)
    elif rows.storage == BFLOAT16:
        store_bfloat16_at_random(rows.arena, at + (column >> np.uint64(1)), weight, lanes, noise, np.int64(column))
    else:
        store_float16_at_random(rows.arena, at + (column >> np.uint64(1)), weight, lanes, noise, np.int64(column))


@inlined
def _sgd(plain, rows, rule, at, gradients, start, scale, noise):
    """g += l2 w; w -= lr g (torch.optim.SGD)."""
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        w = _weights(plain, rows, at, column, lanes)
        g = _gradient(plain, rows, rule, at, column, gradients, start, scale)
        _change(plain, rows, rule, at, column, _decayed(plain, rule, w) - splat(rule.lr) * g, lanes, noise)


@inlined
def _adagrad(plain, rows, rule, at, gradients, start, scale, noise):
    """g += l2 w; s += g * g; w -= lr * g / (sqrt(s) + eps) (Duchi et al. 2011; torch.optim.Adagrad)."""
    state = at + rows.state_at
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        w = _weights(plain, rows, at, column, lanes)
        g = _gradient(plain, rows, rule, at, column, gradients, start, scale)
        s = load(rows.arena, state + column, lanes) + g * g
        store(rows.arena, state + column, s, lanes)
        moved = _decayed(plain, rule, w) - splat(rule.lr) * (g / (square_root(s) + splat(rule.eps)))
        _change(plain, rows, rule, at, column, moved, lanes, noise)


@inlined
def _mean_square(plain, rows, rule, at, gradients, start, scale):
    """Return the mean over a row's columns of its squared gradient."""
    squares = splat(np.float32(0.0))
    for column in range(ZERO, rows.dim, LANES):
        g = _gradient(plain, rows, rule, at, column, gradients, start, scale)
        squares = squares + g * g
    return total(squares) / np.float32(rows.dim)


@inlined
def _move(plain, rows, rule, at, gradients, start, scale, rate, noise):
    """w -= rate * g, with one rate (in all lanes) for the whole row."""
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        w = _weights(plain, rows, at, column, lanes)
        g = _gradient(plain, rows, rule, at, column, gradients, start, scale)
        _change(plain, rows, rule, at, column, _decayed(plain, rule, w) - rate * g, lanes, noise)


@inlined
def _rowwise_adagrad(plain, rows, rule, at, gradients, start, scale, noise):
    """g += l2 w; s += mean(g * g); w -= lr / (sqrt(s) + eps) * g (FBGEMM's exact row-wise Adagrad).

    `l2` and decay are FBGEMM's weight decay on GPUs (modes L2 and DECOUPLE); on CPUs it has none.
    """
    s = rows.arena[at + rows.state_at] + _mean_square(plain, rows, rule, at, gradients, start, scale)
    rows.arena[at + rows.state_at] = s
    rate = splat(rule.lr / (np.sqrt(s) + rule.eps))
    _move(plain, rows, rule, at, gradients, start, scale, rate, noise)


@inlined
def _adam(plain, rows, rule, at, gradients, start, scale, noise):
    """g += l2 w; m += (1-b1)(g - m); v += (1-b2)(g*g - v); w -= lr sqrt(1-b2^t)/(1-b1^t) * m / (sqrt(v) + eps).

    Kingma and Ba 2015, as torch.optim.SparseAdam: rows without a gradient keep m and v.
    """
    means = at + rows.state_at
    squares = means + rows.dim
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        w = _weights(plain, rows, at, column, lanes)
        g = _gradient(plain, rows, rule, at, column, gradients, start, scale)
        m, v = load(rows.arena, means + column, lanes), load(rows.arena, squares + column, lanes)
        m = m + splat(rule.mean_rate) * (g - m)
        v = v + splat(rule.square_rate) * (g * g - v)
        store(rows.arena, means + column, m, lanes)
        store(rows.arena, squares + column, v, lanes)
        moved = _decayed(plain, rule, w) - splat(rule.lr) * (m / (square_root(v) + splat(rule.eps)))
        _change(plain, rows, rule, at, column, moved, lanes, noise)


@inlined
def _rowwise_adam(plain, rows, rule, at, gradients, start, scale, noise):
    """g += l2 w; v += (1-b2)(mean(g*g) - v); w -= lr sqrt(1-b2^t) / (sqrt(v) + eps) * g.

    Adam with b1 = 0 and one v for the row. A mean beyond float32 counts as the greatest float32.
    """
    # Rows change only with their own gradients, so that most of a running mean of gradients would never be applied.
    v = rows.arena[at + rows.state_at]
    mean = min(_mean_square(plain, rows, rule, at, gradients, start, scale), GREATEST)
    v = v + rule.square_rate * (mean - v)
    rows.arena[at + rows.state_at] = v
    rate = splat(rule.lr / (np.sqrt(v) + rule.eps))
    _move(plain, rows, rule, at, gradients, start, scale, rate, noise)


@inlined
def _ftrl(plain, rows, rule, at, gradients, start, scale, noise):
    """z += s a g - (sqrt(n + g*g) - sqrt(n)) * w; n += g*g; w = (sign(z) a l1 - z) / (beta + sqrt(n) + a l2).

    a is the learning rate and s the factor of its schedule, so s a = rule.lr; w is 0 if |z| <= a l1. With s = 1 this is
    algorithm 1 of McMahan et al., "Ad click prediction", 2013, with z multiplied by a.
    """
    # A schedule scales only the part of z that gradients add: if a itself changed, weights would change without a
    # gradient. For the same reason a weight whose gradient is 0 stays unchanged: neither an initial weight nor one
    # rounded to 16 bits equals the formula's solution.
    zs = at + rows.state_at
    ns = zs + rows.dim
    zero, l1 = splat(np.float32(0.0)), splat(rule.l1)
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        g = load(gradients, start + column, lanes) * scale
        w = _weights(plain, rows, at, column, lanes)
        before = load(rows.arena, ns + column, lanes)
        n = smaller(before + g * g, splat(GREATEST))
        root = square_root(n)
        z = load(rows.arena, zs + column, lanes) + (splat(rule.lr) * g - (root - square_root(before)) * w)
        store(rows.arena, zs + column, z, lanes)
        store(rows.arena, ns + column, n, lanes)
        # If |z| <= a l1, `excess` is 0, and so is the weight.
        excess = greater(absolute(z) - l1, zero)
        strength = splat(rule.beta) + root + splat(rule.l2)
        solution = zero - with_sign_of(excess / strength, z)
        _change(plain, rows, rule, at, column, where_zero(g, w, solution), lanes, noise)


CHANGES = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "rowwise_adam": _rowwise_adam,
    "ftrl": _ftrl,
}
"""Function of each kind: (plain, rows, rule, at, gradients, start, scale, noise)."""
