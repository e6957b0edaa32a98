"""What all embedding tables share, and what one table may have of its own."""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from persia_cli.config.schema.node import Node
from persia_cli.config.schema.optimizer import NonNegative, Optimizer, Positive

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bytes(value: Any) -> Any:
    """Turn '512MiB', '2 GiB' or a plain number into bytes; other values pass for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", value.lower())
    if not found or found[1].count(".") > 1:
        raise ValueError("expected a size such as 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])


Bytes = Annotated[PositiveInt, BeforeValidator(parse_bytes)]
Storage = Literal["float32", "bfloat16", "float16"]
Admission = Annotated[float, Field(gt=0, le=1)]

ROUNDING = 1e-9
"""What a sum of shares may be off by: decimal fractions are not exact."""


class HashStack(Node):
    """Few rows for any number of ids: an id is the sum of one row of each round, picked by hashing."""

    rounds: Annotated[int, Field(ge=1, le=16)]
    """Rows that are summed for an id; two ids share all of them only by a rare chance."""
    size: Annotated[int, Field(ge=1, le=2**32)]
    """Rows of each round."""


class Table(Node):
    """A table's own settings; what is not given comes from `model.dim`, `optimizer.embedding` and `embedding`."""

    dim: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Columns of a row."""
    dtype: Storage | None = None
    """How this table's embeddings are kept."""
    optimizer: Optimizer | None = None
    """Optimizer of this table's rows."""
    init_bound: NonNegative | None = None
    """New rows start uniform in [-init_bound, init_bound)."""
    admission: Admission | None = None
    """Share of this table's ids that get a row."""
    weight_bound: Positive | None = None
    """Embeddings of this table are kept within plus and minus this."""
    clip_norm: Positive | None = None
    """Gradients of this table's rows are scaled down to this Euclidean norm."""
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of `embedding.memory` (or `capacity`) that is this table's alone; all others divide what is left."""
    hash_stack: HashStack | None = None
    """Sum a few rows for each id, so that the table never grows beyond rounds x size rows."""

    @model_validator(mode="after")
    def _hash_stack_admits_all(self) -> Self:
        if self.hash_stack and self.admission is not None:
            raise ValueError("a hash_stack has rows for every id, so give it or admission, not both")
        return self


class Embedding(Node):
    """The embedding tables of the job."""

    memory: Bytes = 2**30
    """Memory all servers together may spend on rows and index, e.g. 4GiB."""
    capacity: PositiveInt | None = None
    """Rows all servers together may hold; replaces `memory`."""
    when_full: Literal["evict", "refuse"] = "evict"
    """Where there is no room for a new id: let the row go that was used longest ago, or refuse the new one."""
    dtype: Storage = "float32"
    """How embeddings are kept; the optimizer's state and all arithmetic are float32 always."""
    wire: Storage = "float32"
    """How rows and gradients travel; float16 is scaled by the greatest value of each row."""
    init_bound: NonNegative = 0.01
    """New rows start uniform in [-init_bound, init_bound)."""
    admission: Admission = 1.0
    """Share of ids that get a row, drawn from the seed; the others read as zeros. A hash_stack admits all."""
    weight_bound: Positive | None = None
    """Embeddings are kept within plus and minus this."""
    clip_norm: Positive | None = None
    """The gradient of a row is scaled down to this Euclidean norm."""
    num_partitions: PositiveInt = 4096
    """Most hash ranges that rows are placed by; a group with room for few rows has fewer."""
    tables: dict[str, Table] = Field(default_factory=dict)
    """Settings of single tables by name; a sparse feature's table bears its name unless it says otherwise."""

    @model_validator(mode="after")
    def _shares_are_parts_of_one(self) -> Self:
        shares = {name: table.share for name, table in self.tables.items() if table.share is not None}
        total = math.fsum(shares.values())
        if total > 1.0 + ROUNDING:
            keys = " + ".join(f"embedding.tables.{name}.share" for name in shares)
            raise ValueError(f"{keys} = {total:g}; the shares of all tables together are at most 1")
        return self
