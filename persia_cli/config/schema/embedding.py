"""The settings of all embedding tables, and of single tables."""

import math
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from persia_cli.config.schema.base import NUMBER, Changeable, Count, Dim, Few, Node, NonNegative, Positive
from persia_cli.config.schema.optimizer import Optimizer

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(value: Any) -> Any:
    """Convert '512MiB', '512MB' or a plain number to bytes; return other values unchanged, for pydantic to refuse.

    A unit without `i`, but with `B`, is a power of 1000.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmgt]?)(i?b?)\s*", value.lower())
    if not match:
        raise ValueError("expected a size such as 512MiB or 2GiB")
    return int(Decimal(match[1]) * (1000 if match[3] == "b" else 1024) ** _POWERS[match[2]])


def bytes_text(nbytes: int) -> str:
    """Write bytes as `parse_bytes` reads them, in the largest unit of which they are a whole number."""
    power = max((power for power in range(5) if nbytes % 1024**power == 0), default=0) if nbytes else 0
    return f"{nbytes // 1024**power}{'KMGT'[power - 1]}iB" if power else str(nbytes)


Bytes = Annotated[Annotated[int, Field(gt=0, le=2**60), NUMBER], BeforeValidator(parse_bytes)]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
Duration = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}[smhdw]$")]
"""A whole number of seconds, minutes, hours, days or weeks."""


def seconds_of_duration(text: str) -> int:
    """Return a duration in seconds."""
    return int(text[:-1]) * _SECONDS[text[-1]]


Storage = Literal["float32", "bfloat16", "float16", "int8"]
Wire = Literal["float32", "bfloat16", "float16"]
WhenFull = Literal["auto", "evict_lfu", "evict_lru", "refuse"]

DENSE_TABLE = "(dense)"
"""Name of the reserved table for dense weights that train asynchronously. No feature may read it."""

ROUNDING = 1e-9
"""Tolerance of a sum of shares: decimal fractions are not exact."""


class Frequent(Node):
    """Ids that came often: an id gets a row once it has been looked up so many times."""

    min_count: Annotated[int, Field(ge=1, le=100), NUMBER]
    """Number of the look-up, one for each batch that has the id, at which it gets a row."""


Admission = Annotated[float, Field(gt=0, le=1), NUMBER] | Frequent


class HashStack(Node):
    """Few rows for any number of ids: an id's vector is the sum of one row of each round, selected by hashing."""

    rounds: Annotated[int, Field(ge=1, le=16), NUMBER]
    """Rows that are summed for an id; two ids rarely have all of them in common."""
    size: Annotated[int, Field(ge=1, le=2**32), NUMBER]
    """Rows of each round."""


class Table(Node):
    """A table's own settings; the others come from `model.dim`, `optimizer.embedding` and `embedding`."""

    dim: Dim | None = None
    """Columns of a row."""
    dtype: Storage | None = None
    """Storage type of this table's embeddings."""
    optimizer: Optimizer | None = None
    """Optimizer of this table's rows."""
    init_bound: NonNegative | None = None
    """New rows start uniform in [-init_bound, init_bound)."""
    admission: Admission | None = None
    """Ids of this table that get a row: a fraction of them, or those that came `min_count` times."""
    weight_bound: Positive | None = None
    """Greatest absolute value of this table's embeddings; they are clamped to it."""
    clip_norm: Positive | None = None
    """Greatest Euclidean norm of the gradient of a row of this table; a larger one is scaled down."""
    share: Annotated[float, Field(gt=0, lt=1), NUMBER] | None = None
    """Share of `embedding.memory` (or `capacity`) reserved for this table; tables without one divide the rest."""
    hash_stack: HashStack | None = None
    """Sum a few rows for each id, so that the table never grows beyond rounds x size rows."""
    trainable: bool = True
    """False freezes the table: its rows, which come from `init_from`, are read and never change. Ids without a row get
    none; they read as zeros."""

    @model_validator(mode="after")
    def _frozen_rows_do_not_train(self) -> Self:
        for key in ("optimizer", "init_bound", "admission", "weight_bound", "clip_norm"):
            if not self.trainable and getattr(self, key) is not None:
                raise ValueError(f"{key} has no effect on a table that is not trainable; leave it out")
        return self

    @model_validator(mode="after")
    def _hash_stack_admits_all(self) -> Self:
        if self.hash_stack and self.admission is not None:
            raise ValueError("a hash_stack has rows for every id, so give it or admission, not both")
        return self


class ColdTier(Node):
    """Disks for rows that leave memory; they return when their ids do."""

    path: Annotated[str, Field(min_length=1)]
    """Folder on a local disk of each machine with embedding servers; it or its parent must exist."""
    size: Bytes
    """Most space that all servers together use there, e.g. 500GiB; when it is used up, the oldest rows are lost."""
    threads: Few = 8
    """Threads of each server that read rows."""

    @field_validator("path")
    @classmethod
    def _is_a_folder(cls, path: str) -> str:
        if "://" in path:
            raise ValueError(f"{path} is a URI; rows that leave memory need a folder on a disk of their server")
        return path


class Embedding(Node):
    """The embedding tables of the job."""

    memory: Changeable[Bytes] = 2**30
    """Most memory that all servers together use for rows and index, e.g. 4GiB."""
    capacity: Changeable[Count | None] = None
    """Most rows that all servers together hold in memory; replaces `memory`."""
    cold: Changeable[ColdTier | None] = None
    """Space on disks for rows that leave memory, which are lost without it."""
    when_full: WhenFull = "auto"
    """Rule for a new id without free space: `evict_lfu`, the row that was looked up least often goes, if that was less
    often than the new id; `evict_lru`, the row that was used longest ago goes; `refuse`, the new id gets no row; `auto`
    is the one that measures best, `evict_lfu`.

    It is a row in one of the places that the id could take, and never one of this step.
    """
    expire_after: Count | Duration | None = None
    """Steps since the last look-up of a row after which any new id may replace it where no space is free; with
    `dataset.follow.time`, a time of the data such as `30d` (s, m, h, d or w), to within a portion."""
    dtype: Storage = "float32"
    """Storage type of embeddings; the optimizer's state and all arithmetic are always float32."""
    wire: Wire = "float32"
    """Type of rows and gradients in messages; float16 is scaled by the greatest value of each row."""
    init_bound: NonNegative = 0.01
    """New rows start uniform in [-init_bound, init_bound)."""
    admission: Admission = 1.0
    """Ids that get a row: a fraction of them, selected by the seed, or those that came `min_count` times.

    The others read as zeros. A hash_stack admits all.
    """
    weight_bound: Positive | None = None
    """Greatest absolute value of embeddings; they are clamped to it."""
    clip_norm: Positive | None = None
    """Greatest Euclidean norm of the gradient of a row; a larger one is scaled down."""
    num_partitions: Changeable[Annotated[int, Field(gt=0, le=2**20), NUMBER]] = 4096
    """Greatest number of hash ranges that rows are distributed by; a group with capacity for few rows has fewer."""
    tables: dict[str, Table] = Field(default_factory=dict)
    """Settings of single tables by name; a sparse feature's table has its name unless `table` names another."""

    @model_validator(mode="after")
    def _rows_leave_memory_for_disks(self) -> Self:
        if self.cold is not None and self.when_full == "refuse":
            raise ValueError(
                "when_full=refuse lets no row leave memory, so none gets to cold.path; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _rows_begin_within_their_bound(self) -> Self:
        for name, table in [("", Table()), *self.tables.items()]:
            given = f"embedding.tables.{name}" if name else "embedding"
            start = self.init_bound if table.init_bound is None else table.init_bound
            bound = table.weight_bound or self.weight_bound
            if bound is not None and start > bound:
                keys = [
                    f"{'embedding' if of_table is None else given}.{key}={value:g}"
                    for key, of_table, value in (
                        ("init_bound", table.init_bound, start),
                        ("weight_bound", table.weight_bound, bound),
                    )
                ]
                raise ValueError(f"{keys[0]} is above {keys[1]}: new rows must begin within the bound of weights")
        return self

    @model_validator(mode="after")
    def _shares_are_parts_of_one(self) -> Self:
        shares = {name: table.share for name, table in self.tables.items() if table.share is not None}
        total = math.fsum(shares.values())
        if total > 1.0 + ROUNDING:
            keys = " + ".join(f"embedding.tables.{name}.share" for name in shares)
            raise ValueError(f"{keys} = {total:g}; the shares of all tables must add up to at most 1")
        return self
