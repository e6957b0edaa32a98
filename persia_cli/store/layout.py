"""Which rows a job keeps: tables, groups of equal rows, features that read them, and the placement of keys."""

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MAX_TABLES = 65535
"""Tables of one job: a table's number has 16 bits, and the last one stays free."""
MAX_ROWS = 3 << 30
"""Rows of one group on one server: a slot's row number has 32 bits, at three quarters full."""
SLOTS_PER_ROW = 4 / 3
"""Slots of the index per row of capacity."""

_STATES = {"sgd": (), "adagrad": ("adagrad_sum",), "adam": ("adam_mean", "adam_square")}


@dataclass(frozen=True)
class RowOptimizer:
    """Optimizer of a group's rows; settings its kind does not have are ignored."""

    kind: Literal["sgd", "adagrad", "adam"]
    lr: float
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    beta1: float = 0.9
    beta2: float = 0.999

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states kept per row, each as wide as the embedding."""
        return _STATES[self.kind]


@dataclass(frozen=True)
class TableSpec:
    """A table: its number over the whole job, the salt of its keys, and where new rows start."""

    name: str
    number: int
    salt: int
    init_bound: float


@dataclass(frozen=True)
class GroupSpec:
    """Tables of equal dim and optimizer settings, kept in one row store per server."""

    number: int
    dim: int
    optimizer: RowOptimizer
    tables: tuple[TableSpec, ...]
    capacity: int
    """Rows over all servers together."""

    @property
    def width(self) -> int:
        """float32 values of a row: embedding, states, padding to 16 bytes."""
        return row_width(self.dim, self.optimizer.kind)


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
    num_partitions: int
    seed: int

    def __post_init__(self) -> None:
        """Raise ValueError for groups that are not numbered by their place."""
        if [group.number for group in self.groups] != list(range(len(self.groups))):
            raise ValueError("feature groups must be numbered from 0 in their order")

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


def row_width(dim: int, kind: str) -> int:
    """float32 values of a row of `dim` columns under an optimizer kind, padded to 16 bytes."""
    return math.ceil((1 + len(_STATES[kind])) * dim / 4) * 4


def bytes_per_row(dim: int, kind: str) -> float:
    """Memory a row of capacity takes: values, table and score, and its share of the index."""
    return row_width(dim, kind) * 4 + 8 + SLOTS_PER_ROW * 12


def partitions_of(num_partitions: int, server: int, servers: int) -> range:
    """Partitions that one of `servers` embedding servers owns."""
    return range(-(-num_partitions * server // servers), -(-num_partitions * (server + 1) // servers))


def first_hash(num_partitions: int, partition: int) -> int:
    """Least value of a key's high 32 bits in `partition`; 2**32 for the partition after the last."""
    return -(-(partition << 32) // num_partitions)


def partition_owners(num_partitions: int, servers: int) -> NDArray[np.uint16]:
    """uint16[num_partitions]: the server that owns each partition."""
    owners = np.empty(num_partitions, np.uint16)
    for server in range(servers):
        own = partitions_of(num_partitions, server, servers)
        owners[own.start : own.stop] = server
    return owners
