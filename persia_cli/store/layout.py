"""Which rows a job keeps: tables, groups of equal rows, features that read them, and the placement of keys."""

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from persia_cli.store.schedule import Schedule

MAX_TABLES = 65535
"""Tables of one job: a table's number has 16 bits, and the last one stays free."""
MAX_ROWS = 2**32 - 2
"""Rows of one group on one server: a slot's row number has 32 bits, and 0 marks an empty slot."""
SLOTS = 4
"""Slots of a bucket of the index, which takes 64 bytes."""
MOST_FULL = 0.95
"""Share of the slots that rows take at capacity: beyond it, finding a free slot for a new key costs too much."""
INDEX_BYTES = 64 / SLOTS / MOST_FULL + 3
"""Memory a row takes beside its values: its share of the slots, its table's number, when it was last reused."""
DENSE_TABLE = "(dense)"
"""The reserved table: keeps dense weights where they train asynchronously. No feature may read it."""
ROWS_PER_PARTITION = 2048
"""Rows a partition should have room for: keys fall on partitions by chance, and so few of them fill up early."""

Storage = Literal["float32", "bfloat16", "float16"]
"""How embeddings are kept, or sent; optimizer states are float32 always."""


CONSTANT = Schedule()


@dataclass(frozen=True)
class RowOptimizer:
    """Optimizer of a group's rows; settings its kind does not have are ignored."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"]
    lr: float
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    beta1: float = 0.9
    beta2: float = 0.999
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    clip_norm: float | None = None
    """A row's gradient is scaled down to this Euclidean norm."""
    weight_bound: float | None = None
    """Weights are kept within plus and minus this."""
    each_step: int = 0
    """Gradients that every row gets in each step, as dense weights do; 0: now and then.

    It makes Adam `torch.optim.Adam`; otherwise it is the lazy form, `torch.optim.SparseAdam`.
    """

    def states(self, dim: int) -> dict[str, int]:
        """Return the states kept per row and the float32 columns of each, in their order."""
        match self.kind:
            case "sgd":
                return {}
            case "adagrad":
                return {"adagrad_sum": dim}
            case "rowwise_adagrad":
                return {"adagrad_row_sum": 1}
            case "adam":
                return {"adam_mean": dim, "adam_square": dim}
            case "ftrl":
                return {"ftrl_z": dim, "ftrl_n": dim}


@dataclass(frozen=True)
class TableSpec:
    """A table: its number over the whole job, the salt of its keys, and how its rows come to be."""

    name: str
    number: int
    salt: int
    init_bound: float
    admission: float = 1.0
    """Share of ids that get a row."""
    rounds: int = 0
    """Rows of a hash stack that are summed for an id; 0: an id has a row of its own."""
    size: int = 0
    """Rows of each round of a hash stack."""


@dataclass(frozen=True)
class GroupSpec:
    """Tables of equal dim, dtype and optimizer settings, kept in one row store per server."""

    number: int
    dim: int
    optimizer: RowOptimizer
    tables: tuple[TableSpec, ...]
    capacity: int
    """Rows over all servers together, rounded up to the same number for each partition.

    From then on new rows replace others. Only where a key's candidate slots all hold rows of the same step does it get
    one of the few slots beyond, which the arena has memory for too.
    """
    partitions: int
    """Hash ranges that its rows are placed by."""
    dtype: Storage = "float32"
    wire: Storage = "float32"
    """How its rows and their gradients travel."""

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
        """Rows of each partition at capacity."""
        return math.ceil(self.capacity / self.partitions)

    @property
    def buckets(self) -> int:
        """Buckets of each partition."""
        return max(2, math.ceil(self.rows_per_partition / (SLOTS * MOST_FULL)))


@dataclass(frozen=True)
class FeatureSpec:
    """A sparse feature: its group, its table's number, and how its rows become model input."""

    name: str
    group: int
    table: int
    pooling: str
    max_length: int | None = None


@dataclass(frozen=True)
class EmbeddingLayout:
    """What servers and embedding workers must agree on; groups by number, features in the dataset's order."""

    groups: tuple[GroupSpec, ...]
    features: tuple[FeatureSpec, ...]
    seed: int
    when_full: Literal["evict", "refuse"] = "evict"

    def __post_init__(self) -> None:
        """Raise ValueError for groups that are not numbered by their place."""
        if [group.number for group in self.groups] != list(range(len(self.groups))):
            raise ValueError("feature groups must be numbered from 0 in their order")

    @property
    def dense_group(self) -> GroupSpec | None:
        """The group that keeps dense weights, behind all others; None where NN workers keep them."""
        last = self.groups[-1] if self.groups else None
        return last if last is not None and last.tables[0].name == DENSE_TABLE else None

    @property
    def feature_groups(self) -> tuple[GroupSpec, ...]:
        """The groups that features read."""
        return self.groups if self.dense_group is None else self.groups[:-1]

    def features_of(self, group: int) -> tuple[int, ...]:
        """Positions in `features` of one group's features, in order."""
        return tuple(i for i, feature in enumerate(self.features) if feature.group == group)

    def tables(self) -> tuple[TableSpec, ...]:
        """Tables of all groups, by number."""
        return tuple(sorted((t for group in self.groups for t in group.tables), key=lambda table: table.number))

    def salts(self) -> NDArray[np.uint64]:
        """uint64 salts by table number; 0 where a number is not used."""
        salts = np.zeros(max((table.number for table in self.tables()), default=-1) + 1, np.uint64)
        for table in self.tables():
            salts[table.number] = table.salt
        return salts


def table_salt(name: str) -> int:
    """The 64-bit salt of a table's keys: the first 8 bytes of blake2b of its name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def embedding_words(dim: int, dtype: Storage) -> int:
    """float32 words that an embedding of `dim` columns takes in a row."""
    return dim if dtype == "float32" else math.ceil(dim / 2)


def row_width(dim: int, dtype: Storage, optimizer: RowOptimizer) -> int:
    """float32 words of a row, padded to 16 bytes."""
    words = embedding_words(dim, dtype) + sum(optimizer.states(dim).values())
    return math.ceil(words / 4) * 4


def bytes_per_row(dim: int, dtype: Storage, optimizer: RowOptimizer) -> float:
    """Memory a row of capacity takes: values, table, generation, and its share of the index."""
    return row_width(dim, dtype, optimizer) * 4 + INDEX_BYTES


def partitions_for(capacity: int, most: int) -> int:
    """Partitions of a group of `capacity` rows: a power of two below `most`, or `most`."""
    wanted = max(1, capacity // ROWS_PER_PARTITION)
    return min(most, 1 << (wanted.bit_length() - 1))


def partitions_of(partitions: int, server: int, servers: int) -> range:
    """Partitions that one of `servers` embedding servers owns; none, if there are fewer than servers."""
    return range(-(-partitions * server // servers), -(-partitions * (server + 1) // servers))


def partition_owners(partitions: int, servers: int) -> NDArray[np.uint16]:
    """uint16[partitions]: the server that owns each partition."""
    owners = np.empty(partitions, np.uint16)
    for server in range(servers):
        own = partitions_of(partitions, server, servers)
        owners[own.start : own.stop] = server
    return owners
