"""Slow, plain twins of the kernels: what each must compute, written the obvious way."""

from itertools import pairwise

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def pool_forward(rows, inverse, offsets, modes, size):
    """float32[n, C, dim] of unique rows pooled by mode (0 sum, 1 mean, 2 sqrtn, 3 skipped), added in order."""
    columns = []
    for feature, mode in enumerate(modes):
        if mode == 3:
            continue
        column = np.zeros((size, rows.shape[1]), np.float32)
        for sample in range(size):
            ids = inverse[offsets[feature * size + sample] : offsets[feature * size + sample + 1]]
            for row in ids:
                column[sample] += rows[row]
            if len(ids):
                column[sample] /= divisor(mode, len(ids))
        columns.append(column)
    return np.stack(columns, 1) if columns else np.zeros((size, 0, rows.shape[1]), np.float32)


def divisor(mode, count):
    """What a pooled sum of `count` rows is divided by."""
    return np.float32([1, count, np.sqrt(np.float32(count))][mode])


def pool_backward(gradient, inverse, offsets, modes, rows):
    """float32[rows, dim]: gradient float32[n, C, dim] of pooled vectors summed per unique row."""
    size = gradient.shape[0]
    gradients = np.zeros((rows, gradient.shape[2]), np.float32)
    columns = iter(range(gradient.shape[1]))
    for feature, mode in enumerate(modes):
        if mode == 3:
            continue
        column = next(columns)
        for sample in range(size):
            ids = inverse[offsets[feature * size + sample] : offsets[feature * size + sample + 1]]
            for row in ids:
                gradients[row] += gradient[sample, column] / divisor(mode, len(ids))
    return gradients


def sequence_forward(rows, inverse, offsets, length):
    """values float32[n, length, dim] and mask bool[n, length]: the last `length` rows of each sample."""
    size = len(offsets) - 1
    values = np.zeros((size, length, rows.shape[1]), np.float32)
    mask = np.zeros((size, length), bool)
    for sample in range(size):
        for position, row in enumerate(inverse[offsets[sample] : offsets[sample + 1]][-length:]):
            values[sample, position] = rows[row]
            mask[sample, position] = True
    return values, mask


def sequence_backward(gradient, inverse, offsets, rows):
    """float32[rows, dim]: gradient float32[n, length, dim] of a feature's sequences summed per unique row."""
    gradients = np.zeros((rows, gradient.shape[2]), np.float32)
    for sample in range(len(offsets) - 1):
        for position, row in enumerate(inverse[offsets[sample] : offsets[sample + 1]][-gradient.shape[1] :]):
            gradients[row] += gradient[sample, position]
    return gradients


def mix(x):
    """The finalizer of splitmix64 on a Python integer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def keys_of(salt, ids):
    """uint64 keys of ids in a table."""
    return np.array([mix(int(id_) ^ salt) for id_ in ids], np.uint64)


def initial_rows(seed, salt, ids, dim, bound):
    """float32[n, dim] embeddings that new rows of `ids` start with: uniform in [-bound, bound), exactly."""
    rows = np.empty((len(ids), dim), np.float32)
    for i, id_ in enumerate(ids):
        start = mix(mix(mix(seed % 2**64) ^ salt) ^ int(id_))
        for column in range(dim):
            bits = mix((start + (column + 1) * GOLDEN) & MASK) >> 40
            rows[i, column] = np.float32(bits - 2**23) * (np.float32(bound) * np.float32(2**-23))
    return rows


def optimize(optimizer, row, dim, gradient, step):
    """Apply a RowOptimizer to one row float32[(1 + states) * dim] in place, in float32."""
    f32 = np.float32
    weight, state = row[:dim], row[dim:]
    if optimizer.kind == "sgd":
        weight -= f32(optimizer.lr) * gradient
    elif optimizer.kind == "adagrad":
        state += gradient * gradient
        weight -= f32(optimizer.lr) * (gradient / (np.sqrt(state) + f32(optimizer.eps)))
    else:
        mean, square = state[:dim], state[dim:]
        mean += f32(1 - optimizer.beta1) * (gradient - mean)
        square += f32(1 - optimizer.beta2) * (gradient * gradient - square)
        corrections = np.sqrt(1 - optimizer.beta2 ** (step + 1)) / (1 - optimizer.beta1 ** (step + 1))
        weight -= f32(optimizer.lr * corrections) * (mean / (np.sqrt(square) + f32(optimizer.eps)))


class Group:
    """Twin of one feature group on one server: a dict from (key, table number) to its row, ids known beforehand."""

    def __init__(self, group, capacity, seed):
        self.group, self.capacity, self.seed = group, capacity, seed
        self.rows, self.scores = {}, {}
        self.tables = {table.number: table for table in group.tables}
        self.counts = {
            number: dict.fromkeys(("hits", "created", "refused", "gradients_missing", "gradients_refused"), 0)
            for number in self.tables
        }

    def look_up(self, ids, tables, step, create):
        """float32[n, dim] embeddings of ids."""
        out = np.zeros((len(ids), self.group.dim), np.float32)
        for i, name in enumerate(zip(ids, tables, strict=True)):
            if name not in self.rows and create:
                self._create(name)
            elif create:
                self.counts[name[1]]["hits"] += 1
            if name in self.rows:
                out[i] = self.rows[name][: self.group.dim]
                if create:
                    self.scores[name] = max(self.scores.get(name, 0), step)
        return out

    def _create(self, name):
        full = len(self.rows) == self.capacity
        self.counts[name[1]]["refused" if full else "created"] += 1
        if not full:
            table, optimizer = self.tables[name[1]], self.group.optimizer
            embedding = initial_rows(self.seed, table.salt, [name[0]], self.group.dim, table.init_bound)[0]
            start = optimizer.initial_accumulator_value if optimizer.kind == "adagrad" else 0.0
            states = np.full(len(optimizer.states) * self.group.dim, start, np.float32)
            self.rows[name] = np.concatenate([embedding, states])

    def update(self, ids, tables, gradients, step):
        """Apply the optimizer to the rows of distinct ids."""
        for name, gradient in zip(zip(ids, tables, strict=True), gradients, strict=True):
            if name not in self.rows:
                self.counts[name[1]]["gradients_missing"] += 1
            elif not np.isfinite(gradient).all():
                self.counts[name[1]]["gradients_refused"] += 1
            else:
                optimize(self.group.optimizer, self.rows[name], self.group.dim, gradient, step)
                self.scores[name] = max(self.scores[name], step)


def unique(keys, tables):
    """(unique keys, unique tables, inverse) of (key, table) pairs in order of first appearance."""
    numbers = {}
    inverse = [numbers.setdefault(pair, len(numbers)) for pair in zip(keys.tolist(), tables.tolist(), strict=True)]
    return [key for key, _ in numbers], [table for _, table in numbers], inverse


def server_of(key, num_partitions, servers):
    """The server whose partitions hold a key: server s owns [ceil(P*s/S), ceil(P*(s+1)/S))."""
    partition = (key >> 32) * num_partitions >> 32
    return next(s for s in range(servers) if partition < -(-num_partitions * (s + 1) // servers))


def plan_group(layout, group, servers, ids, offsets, size):
    """(keys, tables, bounds, inverse, offsets) of one group of a feature-major batch, as lists."""
    salts = {table.number: table.salt for table in layout.tables()}
    keys, tables, group_offsets = [], [], [0]
    for position, feature in enumerate(layout.features):
        if feature.group != group:
            continue
        for bag in range(position * size, (position + 1) * size):
            own = ids[offsets[bag] : offsets[bag + 1]]
            keys += [mix(int(id_) ^ salts[feature.table]) for id_ in own]
            tables += [feature.table] * len(own)
            group_offsets.append(len(keys))
    pairs = list(dict.fromkeys(zip(keys, tables, strict=True)))
    owners = [server_of(key, layout.num_partitions, servers) for key, _ in pairs]
    pairs = [pair for server in range(servers) for pair, owner in zip(pairs, owners, strict=True) if owner == server]
    bounds = [sum(owner < server for owner in owners) for server in range(servers + 1)]
    inverse = [pairs.index(pair) for pair in zip(keys, tables, strict=True)]
    single = all(stop - start == 1 for start, stop in pairwise(group_offsets))
    return [key for key, _ in pairs], [t for _, t in pairs], bounds, inverse, None if single else group_offsets


def merge(parts):
    """{(key, table): summed gradient} of (keys, tables, gradients) parts, in order of first appearance."""
    sums = {}
    for keys, tables, gradients in parts:
        for pair, gradient in zip(zip(keys.tolist(), tables.tolist(), strict=True), gradients, strict=True):
            sums[pair] = sums[pair] + gradient if pair in sums else gradient
    return sums
