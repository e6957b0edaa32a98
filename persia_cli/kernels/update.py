"""The optimizers that change rows.

In float32, without fused multiply and add: SGD, Adagrad and SparseAdam give what torch's give for sparse gradients,
row-wise Adagrad what FBGEMM's exact one gives. In formulas w is the embedding, g its gradient, t counts from 1.
"""

from typing import NamedTuple

import numpy as np
from numba import types

from persia_cli.kernels.compile import inlined, kernel, read, write
from persia_cli.kernels.halves import store_bfloat16_at_random, store_float16_at_random
from persia_cli.kernels.hashing import GOLDEN, _mix
from persia_cli.kernels.rows import (
    BFLOAT16,
    FLOAT32,
    LANES,
    ROWS,
    ZERO,
    burst_of,
    embedding_lanes,
    prefetch_first,
    prefetch_later,
    start_of,
)
from persia_cli.kernels.simd import (
    absolute,
    finite,
    greater,
    load,
    smaller,
    splat,
    square_root,
    store,
    total,
    with_sign_of,
)

F32, I64, U16, U64 = types.float32, types.int64, types.uint16, types.uint64
SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = 0, 1, 2, 3, 4
KINDS = {"sgd": SGD, "adagrad": ADAGRAD, "rowwise_adagrad": ROWWISE_ADAGRAD, "adam": ADAM, "ftrl": FTRL}
REFUSED = np.float32(-1.0)


class Rule(NamedTuple):
    """An optimizer at one step; what its kind does not have is 0."""

    lr: np.float32
    """Learning rate of the step; for Adam with its bias corrections."""
    eps: np.float32
    first: np.float32
    """Adam: 1 - beta1. FTRL: lr * l1."""
    second: np.float32
    """Adam: 1 - beta2. FTRL: lr * l2."""
    beta: np.float32
    """FTRL: beta."""
    weight_decay: np.float32
    clip: np.float32
    """Greatest Euclidean norm of a row's gradient; 0: any."""
    bound: np.float32
    """Greatest magnitude of a weight; 0: any."""
    plain: bool
    """No weight decay, clip or bound."""
    noise: np.uint64
    """What stochastic rounding draws from beside the key: a function of seed and step."""


RULE = types.NamedTuple((F32, F32, F32, F32, F32, F32, F32, F32, types.boolean, U64), Rule)


def _updater(name):
    """The kernel of one optimizer: in a kernel for all, each row would pay for what the others need."""
    kind = KINDS[name]

    def update(rows, rule, keys, found, tables, gradients, missing, refused):
        """Apply the optimizer to the rows `found` with gradients (flat [n, dim]).

        A gradient of row -1 counts as missing and one with a value that is not finite as refused, by table number.
        """
        plain = rows.storage == FLOAT32 and rows.dim % LANES == ZERO and rule.plain
        burst = burst_of(rows, rows.width, max(np.uint64(keys.size), np.uint64(1)))
        for start in range(ZERO, np.uint64(keys.size), burst):
            stop = min(start + burst, np.uint64(keys.size))
            prefetch_first(rows, found, start, stop, rows.width)
            if plain:
                _change_rows(kind, True, rows, rule, keys, found, tables, gradients, start, stop, missing, refused)
            else:
                _change_rows(kind, False, rows, rule, keys, found, tables, gradients, start, stop, missing, refused)

    update.__name__ = f"update_{name}"
    return kernel(types.void(ROWS, RULE, read(U64), read(I64), read(U16), read(F32), write(I64), write(I64)))(update)


@inlined
def _change_rows(kind, plain, rows, rule, keys, found, tables, gradients, start, stop, missing, refused):
    """Change the rows found[start:stop]; `plain` promises float32, a dim of whole vectors, and nothing but the formula.

    `kind` and `plain` are constants of the call, so that what they exclude is not even compiled.
    """
    for i in range(start, stop):
        prefetch_later(rows, found, i, stop, rows.width)
        at = i * rows.dim
        if found[i] < 0:
            missing[tables[i]] += 1
            continue
        scale = _scale(plain, gradients, at, rows.dim, rule.clip)
        if scale == REFUSED:
            refused[tables[i]] += 1
            continue
        row = start_of(rows, found[i])
        noise = np.uint32(0)
        if not plain and rows.storage != FLOAT32:
            noise = np.uint32(_mix(rule.noise ^ keys[i]) & np.uint64(2**32 - 1))
        if kind == SGD:
            _sgd(plain, rows, rule, row, gradients, at, splat(scale), noise)
        elif kind == ADAGRAD:
            _adagrad(plain, rows, rule, row, gradients, at, splat(scale), noise)
        elif kind == ROWWISE_ADAGRAD:
            _rowwise_adagrad(plain, rows, rule, row, gradients, at, splat(scale), noise)
        elif kind == ADAM:
            _adam(plain, rows, rule, row, gradients, at, splat(scale), noise)
        else:
            _ftrl(plain, rows, rule, row, gradients, at, splat(scale), noise)


@inlined
def _lanes(plain, dim, column):
    """Lanes from a column on."""
    return np.int64(16) if plain else np.int64(dim - column)


@inlined
def _weights(plain, rows, at, column, lanes):
    """Lanes of the embedding of the row that starts at word `at`."""
    return load(rows.arena, at + column, lanes) if plain else embedding_lanes(rows, at, column, lanes)


@inlined
def _scale(plain, gradients, at, dim, clip):
    """What a row's gradient is multiplied by so that its norm is at most `clip`; REFUSED if it is not finite."""
    sound = True
    squares = splat(np.float32(0.0))
    for column in range(ZERO, dim, LANES):
        g = load(gradients, at + column, _lanes(plain, dim, column))
        sound &= finite(g)
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
    """Write changed weights: within the bound, and to halves rounded up or down by chance, so that small steps add up.

    Stochastic rounding as in Gupta et al., "Deep learning with limited numerical precision", 2015.
    """
    if not plain and rule.bound > np.float32(0.0):
        weight = smaller(greater(weight, splat(-rule.bound)), splat(rule.bound))
    if plain or rows.storage == FLOAT32:
        store(rows.arena, at + column, weight, lanes)
    elif rows.storage == BFLOAT16:
        store_bfloat16_at_random(rows.arena, at + (column >> np.uint64(1)), weight, lanes, noise, np.int64(column))
    else:
        store_float16_at_random(rows.arena, at + (column >> np.uint64(1)), weight, lanes, noise, np.int64(column))


@inlined
def _sgd(plain, rows, rule, at, gradients, start, scale, noise):
    """g += weight_decay * w; w -= lr * g (torch.optim.SGD)."""
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        g = load(gradients, start + column, lanes) * scale
        w = _weights(plain, rows, at, column, lanes)
        if not plain and rule.weight_decay != np.float32(0.0):
            g = g + splat(rule.weight_decay) * w
        _change(plain, rows, rule, at, column, w - splat(rule.lr) * g, lanes, noise)


@inlined
def _adagrad(plain, rows, rule, at, gradients, start, scale, noise):
    """s += g * g; w -= lr * g / (sqrt(s) + eps) (Duchi et al. 2011; torch.optim.Adagrad)."""
    state = at + rows.state_at
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        g = load(gradients, start + column, lanes) * scale
        s = load(rows.arena, state + column, lanes) + g * g
        store(rows.arena, state + column, s, lanes)
        w = _weights(plain, rows, at, column, lanes)
        moved = w - splat(rule.lr) * (g / (square_root(s) + splat(rule.eps)))
        _change(plain, rows, rule, at, column, moved, lanes, noise)


@inlined
def _rowwise_adagrad(plain, rows, rule, at, gradients, start, scale, noise):
    """g += weight_decay * w; s += mean(g * g); w -= lr / (sqrt(s) + eps) * g (FBGEMM's exact row-wise Adagrad).

    FBGEMM decays weights so (mode L2) on GPUs; on CPUs it has no weight decay.
    """
    squares = splat(np.float32(0.0))
    for column in range(ZERO, rows.dim, LANES):
        g = _decayed(plain, rows, rule, at, column, gradients, start, scale)
        squares = squares + g * g
    s = rows.arena[at + rows.state_at] + total(squares) / np.float32(rows.dim)
    rows.arena[at + rows.state_at] = s
    rate = splat(rule.lr / (np.sqrt(s) + rule.eps))
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        g = _decayed(plain, rows, rule, at, column, gradients, start, scale)
        _change(plain, rows, rule, at, column, _weights(plain, rows, at, column, lanes) - rate * g, lanes, noise)


@inlined
def _decayed(plain, rows, rule, at, column, gradients, start, scale):
    """Lanes of the gradient with weight decay."""
    lanes = _lanes(plain, rows.dim, column)
    g = load(gradients, start + column, lanes) * scale
    if not plain and rule.weight_decay != np.float32(0.0):
        g = g + splat(rule.weight_decay) * _weights(plain, rows, at, column, lanes)
    return g


@inlined
def _adam(plain, rows, rule, at, gradients, start, scale, noise):
    """m += (1-b1)(g - m); v += (1-b2)(g*g - v); w -= lr sqrt(1-b2^t)/(1-b1^t) * m / (sqrt(v) + eps).

    Kingma and Ba 2015, as torch.optim.SparseAdam: rows without a gradient keep m and v.
    """
    means = at + rows.state_at
    squares = means + rows.dim
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        g = load(gradients, start + column, lanes) * scale
        m, v = load(rows.arena, means + column, lanes), load(rows.arena, squares + column, lanes)
        m = m + splat(rule.first) * (g - m)
        v = v + splat(rule.second) * (g * g - v)
        store(rows.arena, means + column, m, lanes)
        store(rows.arena, squares + column, v, lanes)
        w = _weights(plain, rows, at, column, lanes)
        moved = w - splat(rule.lr) * (m / (square_root(v) + splat(rule.eps)))
        _change(plain, rows, rule, at, column, moved, lanes, noise)


@inlined
def _ftrl(plain, rows, rule, at, gradients, start, scale, noise):
    """z += lr * g - (sqrt(n + g*g) - sqrt(n)) * w; n += g*g; w = (sign(z) lr l1 - z) / (beta + sqrt(n) + lr l2).

    w is 0 where |z| <= lr l1. This is algorithm 1 of McMahan et al., "Ad click prediction", 2013, with z times the
    learning rate, so that a change of the rate does not change weights by itself.
    """
    zs = at + rows.state_at
    ns = zs + rows.dim
    zero, l1 = splat(np.float32(0.0)), splat(rule.first)
    for column in range(ZERO, rows.dim, LANES):
        lanes = _lanes(plain, rows.dim, column)
        g = load(gradients, start + column, lanes) * scale
        w = _weights(plain, rows, at, column, lanes)
        before = load(rows.arena, ns + column, lanes)
        n = before + g * g
        root = square_root(n)
        z = load(rows.arena, zs + column, lanes) + (splat(rule.lr) * g - (root - square_root(before)) * w)
        store(rows.arena, zs + column, z, lanes)
        store(rows.arena, ns + column, n, lanes)
        # Where |z| <= lr l1 nothing is left over: the weight is 0.
        left = greater(absolute(z) - l1, zero)
        strength = splat(rule.beta) + root + splat(rule.second)
        _change(plain, rows, rule, at, column, zero - with_sign_of(left / strength, z), lanes, noise)


UPDATES = {name: _updater(name) for name in KINDS}
"""The kernel of each kind of optimizer: (rows, rule, keys, found, tables, gradients, missing, refused)."""


def noise_of(seed: int, step: int) -> np.uint64:
    """Return what stochastic rounding of a step draws from, beside keys."""
    with np.errstate(over="ignore"):
        x = np.uint64(seed % 2**64) ^ (np.uint64(step + 1) * GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
