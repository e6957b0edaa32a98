"""The layout of a job's rows: tables, feature groups, the features that read them, and the placement of keys."""

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.embedding import DENSE_TABLE

MAX_TABLES = 65535
"""Maximum number of tables of a job: a table's number has 16 bits, and the last one is not used."""
MAX_ROWS = 2**32 - 2
"""Maximum number of rows of a group on one server: a slot's row number has 32 bits, and 0 marks an empty slot."""
SLOTS = 4
"""Slots of a bucket of the index."""
MAX_FILL = 0.95
"""Fraction of the slots in use at capacity; beyond it, finding a free slot for a new key would take too long."""
BUCKET_BYTES, FILL_BYTES = 64, 4
"""Memory of a bucket, and of a partition's count of rows."""
MIN_BUCKETS = 2
"""Minimum number of buckets of a partition."""
MIN_INDEX_BYTES = MIN_BUCKETS * BUCKET_BYTES + FILL_BYTES
"""Memory of the smallest index of a group, in bytes."""
ROW_BYTES = 3
"""Memory of a row's table number (2 bytes) and of its last reuse (1 byte)."""
INDEX_BYTES = BUCKET_BYTES / SLOTS / MAX_FILL + ROW_BYTES
"""Memory of a row in addition to its values, in bytes."""
USES_BYTES, LINE_BYTES = 4, 64
"""Memory of a row's count of look-ups, and of a line of a sketch."""
ROWS_PER_LINE = 8
"""Rows of capacity for each line of the sketch that counts look-ups of ids without a row."""
LOOK_UPS_PER_ROW = 128
"""Look-ups for each row of capacity, after which counts of look-ups are halved, if no id came twice in a batch."""
ROWS_PER_PARTITION = 2048
"""Minimum rows of a partition's capacity: hashing spreads keys unevenly, and smaller partitions overflow early."""
Storage = Literal["float32", "bfloat16", "float16", "int8"]
"""The dtypes in which embeddings are stored; optimizer states are always float32."""
Wire = Literal["float32", "bfloat16", "float16"]
"""The dtypes in which embeddings and their gradients are sent."""
WhenFull = Literal["auto", "evict_lfu", "evict_lru", "refuse"]
"""Policies for an id without a row in a full partition."""

NEGATIVES = "negatives"
"""Name and pooling of the feature with the negatives that a loader draws for a step, the last of a batch."""

CYCLE_RISE, CYCLE_START = 0.3, 0.04
"""Of `one_cycle`: the fraction of its steps in which the learning rate rises, and of the rate at its first step."""


@dataclass(frozen=True)
class Schedule:
    """The factor of the learning rate at each step.

    In the first `warmup_steps` steps it rises linearly to 1: step t has (t + 1) / warmup_steps. After that, `constant`
    is 1. `step` is multiplied by `factor` each `every_steps` steps (torch's `StepLR`). `cosine` falls from 1 to `floor`
    over `over_steps` steps and stays there (Loshchilov and Hutter, "SGDR", 2017, equation 5, without restarts).
    `one_cycle` rises along half a cosine from 0.04 to 1, for 0.3 of `over_steps`, and falls along another to `floor`
    (torch's `OneCycleLR` with its defaults, which changes momentum too). `reduce_on_plateau` is multiplied by `factor`
    at each reduction, which evaluations decide on, and does not fall below `floor`.
    """

    kind: Literal["constant", "step", "cosine", "one_cycle", "reduce_on_plateau"] = "constant"
    warmup_steps: int = 0
    every_steps: int = 1
    factor: float = 1.0
    over_steps: int = 1
    floor: float = 0.0

    def at(self, step: int, reductions: int = 0) -> float:
        """Return the factor of a step, counted from 0, after so many reductions by evaluations."""
        if self.kind == "reduce_on_plateau":
            warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
            return warm * max(self.factor**reductions, self.floor)
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        after = step - self.warmup_steps
        if self.kind == "step":
            return self.factor ** (after // self.every_steps)
        if self.kind == "cosine":
            done = min(1.0, after / self.over_steps)
            return _between(1.0, self.floor, done)
        if self.kind == "one_cycle":
            peak, last = max(0.0, CYCLE_RISE * self.over_steps - 1), self.over_steps - 1
            if after < peak:
                return _between(CYCLE_START, 1.0, after / peak)
            return _between(1.0, self.floor, min(1.0, (after - peak) / (last - peak)) if last > peak else 1.0)
        return 1.0


def _between(first: float, last: float, done: float) -> float:
    """Return the value of half a cosine from `first` to `last` at this fraction of it."""
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * done))


CONSTANT = Schedule()

OptimizerKind = Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"]
"""Optimizers of rows."""


@dataclass(frozen=True)
class RowOptimizer:
    """The optimizer of a group's rows; settings that its kind does not have are ignored."""

    kind: OptimizerKind
    lr: float
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    beta1: float = 0.9
    beta2: float = 0.999
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    """FTRL: strength of its L2 penalty; others: multiple of a row that is added to each of its gradients."""
    weight_decay: float = 0.0
    """Fraction of a row, times the learning rate, that is subtracted from it with each of its gradients."""
    schedule: Schedule = CONSTANT
    clip_norm: float | None = None
    """Maximum Euclidean norm of a row's gradient; larger gradients are scaled down."""
    weight_bound: float | None = None
    """Maximum magnitude of a weight."""
    each_step: int = 0
    """Number of gradients that every row gets in each step, as dense weights do; 0 if a row gets one only when used.

    If it is not 0, Adam is that of `torch.optim.Adam`, otherwise the lazy variant of `torch.optim.SparseAdam`.
    """

    def states(self, dim: int) -> dict[str, int]:
        """Return the names of a row's states and the number of float32 columns of each, in their order."""
        match self.kind:
            case "sgd":
                return {}
            case "adagrad":
                return {"adagrad_sum": dim}
            case "rowwise_adagrad":
                return {"adagrad_row_sum": 1}
            case "adam":
                return {"adam_mean": dim, "adam_square": dim}
            case "rowwise_adam":
                return {"adam_row_square": 1}
            case "ftrl":
                return {"ftrl_z": dim, "ftrl_n": dim}


@dataclass(frozen=True)
class TableSpec:
    """A table: its number in the job, the salt of its keys, and the rules for its new rows."""

    name: str
    number: int
    salt: int
    init_bound: float
    admission: float = 1.0
    """Fraction of ids that get a row."""
    min_count: int = 1
    """Number of the look-up at which an id gets a row."""
    rounds: int = 0
    """Number of rows of a hash stack that are summed for an id; 0 if each id has one row."""
    size: int = 0
    """Rows of each round of a hash stack."""


@dataclass(frozen=True)
class GroupSpec:
    """Tables of equal dim, dtype and optimizer settings, stored in one row store per server."""

    number: int
    dim: int
    optimizer: RowOptimizer
    tables: tuple[TableSpec, ...]
    capacity: int
    """Maximum number of rows of all servers together, divided evenly among partitions and rounded down."""
    partitions: int
    """Number of key ranges by which its rows are placed."""
    dtype: Storage = "float32"
    wire: Wire = "float32"
    """Dtype in which its rows and their gradients travel."""
    counts_uses: bool = False
    """True if stores count look-ups of ids, so that the least frequently used rows are evicted."""
    epoch_bits: int = 0
    """Counts of look-ups are halved every 2^epoch_bits steps."""
    cold_bytes: int = 0
    """Space on disks, of all servers together, for rows that leave memory; 0 if they are lost."""
    names_left: bool = False
    """True if stores note the keys whose rows are evicted, for what a publisher has to delete."""

    @property
    def is_frozen(self) -> bool:
        """True if its rows never change: there are no gradients of them."""
        return self.optimizer.lr == 0.0

    @property
    def counts_all_new(self) -> bool:
        """True if ids without a row are counted from the first on: their admission depends on it."""
        return any(table.min_count > 1 for table in self.tables)

    @property
    def sketch_lines(self) -> int:
        """Lines of the sketch of each partition, 0 if frequencies of ids without a row are not needed."""
        counts = self.counts_uses or self.counts_all_new
        return math.ceil(self.rows_per_partition / ROWS_PER_LINE) if counts else 0

    @property
    def vectors(self) -> dict[str, int]:
        """Number of float32 columns of the embedding and of each optimizer state, by name, in their order."""
        return {"embedding": self.dim, **self.optimizer.states(self.dim)}

    @property
    def width(self) -> int:
        """float32 words of a row: embedding, states, padding to 16 bytes."""
        return row_width(self.dim, self.dtype, self.optimizer)

    @property
    def state_at(self) -> int:
        """float32 words of a row before its states."""
        return embedding_words(self.dim, self.dtype)

    @property
    def rows_per_partition(self) -> int:
        """Maximum number of rows of each partition."""
        return self.capacity // self.partitions

    @property
    def buckets(self) -> int:
        """Buckets of each partition."""
        return max(MIN_BUCKETS, math.ceil(self.rows_per_partition / (SLOTS * MAX_FILL)))

    @property
    def nbytes(self) -> int:
        """Memory of rows and index at capacity, of all servers together, in bytes."""
        index = self.buckets * BUCKET_BYTES + FILL_BYTES
        row = self.width * 4 + ROW_BYTES + (USES_BYTES if self.counts_uses else 0)
        return self.partitions * (index + self.sketch_lines * LINE_BYTES + self.rows_per_partition * row)


@dataclass(frozen=True)
class FeatureSpec:
    """A sparse feature: its group, its table's number, and its pooling."""

    name: str
    group: int
    table: int
    pooling: str
    max_length: int | None = None


@dataclass(frozen=True)
class EmbeddingLayout:
    """The tables, groups and features of a job, the same for all roles; features are in the dataset's order."""

    groups: tuple[GroupSpec, ...]
    features: tuple[FeatureSpec, ...]
    seed: int
    when_full: WhenFull = "auto"
    expire_after: int | None = None
    """Steps since the last look-up of a row after which any new id may take it, if the partition is full."""
    budget: str = "embedding.memory"
    """The key that bounds the rows in memory."""

    def __post_init__(self) -> None:
        """Raise ValueError unless groups are numbered from 0 in their order."""
        if [group.number for group in self.groups] != list(range(len(self.groups))):
            raise ValueError("feature groups must be numbered from 0 in their order")

    @property
    def dense_group(self) -> GroupSpec | None:
        """The group that stores dense weights, always the last one; None if NN workers store them."""
        last = self.groups[-1] if self.groups else None
        return last if last is not None and last.tables[0].name == DENSE_TABLE else None

    @property
    def feature_groups(self) -> tuple[GroupSpec, ...]:
        """The groups that features read."""
        return self.groups if self.dense_group is None else self.groups[:-1]

    def features_of(self, group: int) -> tuple[int, ...]:
        """Return the positions in `features` of one group's features, in order."""
        return tuple(i for i, feature in enumerate(self.features) if feature.group == group)

    def tables(self) -> tuple[TableSpec, ...]:
        """Return the tables of all groups, ordered by number."""
        return tuple(sorted((t for group in self.groups for t in group.tables), key=lambda table: table.number))

    def salts(self) -> NDArray[np.uint64]:
        """Return uint64 salts by table number; 0 for numbers that are not used."""
        salts = np.zeros(max((table.number for table in self.tables()), default=-1) + 1, np.uint64)
        for table in self.tables():
            salts[table.number] = table.salt
        return salts


def table_salt(name: str) -> int:
    """Return the 64-bit salt of a table's keys: the first 8 bytes of blake2b of its name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def embedding_words(dim: int, dtype: Storage) -> int:
    """Return the number of float32 words of an embedding of `dim` columns."""
    match dtype:
        case "float32":
            return dim
        case "bfloat16" | "float16":
            return math.ceil(dim / 2)
        case "int8":
            return 1 + math.ceil(dim / 4)


def row_width(dim: int, dtype: Storage, optimizer: RowOptimizer) -> int:
    """Return the number of float32 words of a row, padded to 16 bytes."""
    words = embedding_words(dim, dtype) + sum(optimizer.states(dim).values())
    return math.ceil(words / 4) * 4


def bytes_per_row(
    dim: int, dtype: Storage, optimizer: RowOptimizer, counts_uses: bool = False, counts_new: bool = False
) -> float:
    """Return the memory per row of capacity, in bytes: values, table number, last reuse, its part of the index.

    With `counts_uses` look-ups of rows are counted, with `counts_new` those of ids without a row.
    """
    counts = (USES_BYTES if counts_uses else 0) + (LINE_BYTES / ROWS_PER_LINE if counts_uses or counts_new else 0)
    return row_width(dim, dtype, optimizer) * 4 + INDEX_BYTES + counts


def epoch_bits_for(capacity: int, ids: int) -> int:
    """Return the steps of an epoch of counts, as the exponent of 2, for so many rows and ids of a batch."""
    return max(1, LOOK_UPS_PER_ROW * capacity // max(1, ids)).bit_length() - 1


def partitions_for(capacity: int, max_partitions: int) -> int:
    """Return the number of partitions of a group of `capacity` rows: a power of two, or `max_partitions`."""
    wanted = max(1, capacity // ROWS_PER_PARTITION)
    return min(max_partitions, 1 << (wanted.bit_length() - 1))


def partitions_of(partitions: int, server: int, servers: int) -> range:
    """Return the partitions that one of `servers` embedding servers owns; none if there are more servers."""
    return range(-(-partitions * server // servers), -(-partitions * (server + 1) // servers))


def partitions_of_keys(keys: NDArray[np.uint64], partitions: int) -> NDArray[np.uint64]:
    """Return the partition of each key, out of `partitions`: its high 32 bits choose it, as in kernels."""
    return ((keys >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)


def partition_owners(partitions: int, servers: int) -> NDArray[np.uint16]:
    """Return the server that owns each partition, uint16[partitions]."""
    owners = np.empty(partitions, np.uint16)
    for server in range(servers):
        partitions_of_server = partitions_of(partitions, server, servers)
        owners[partitions_of_server.start : partitions_of_server.stop] = server
    return owners
