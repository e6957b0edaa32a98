"""What all embedding tables share, and what one table may have of its own."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveInt

from persia_cli.config.schema.node import Node
from persia_cli.config.schema.optimizer import Optimizer

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


class Table(Node):
    """A table's own settings; what is not given comes from `model.dim`, `optimizer.embedding` and `embedding`."""

    dim: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Columns of a row."""
    optimizer: Optimizer | None = None
    """Optimizer of this table's rows."""
    init_bound: NonNegativeFloat | None = None
    """New rows start uniform in [-init_bound, init_bound)."""


class Embedding(Node):
    """The embedding tables of the job."""

    memory: Bytes = 2**30
    """Memory all servers together may spend on rows and index, e.g. 4GiB."""
    capacity: PositiveInt | None = None
    """Rows all servers together may hold; replaces `memory`."""
    init_bound: NonNegativeFloat = 0.01
    """New rows start uniform in [-init_bound, init_bound)."""
    num_partitions: PositiveInt = 4096
    """Hash ranges that rows are placed by; fixed for the life of a model, at least one per server."""
    tables: dict[str, Table] = Field(default_factory=dict)
    """Settings of single tables by name; a sparse feature's table bears its name unless it says otherwise."""
