"""Resources of replicas of each role, for schedulers that ask, and the processors they are pinned to."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from persia_cli.config.schema.base import Amount, Few, Node
from persia_cli.config.schema.embedding import Bytes

Role = Literal["coordinator", "embedding_server", "embedding_worker", "data_loader", "nn_worker"]


class RoleResources(Node):
    """Resources of one replica of a role; by default those that its part of the job is planned to take."""

    cpus: Few | None = None
    """Processors, by default as many as it keeps busy."""
    memory: Bytes | None = None
    """Memory, e.g. 4GiB."""
    gpus: Amount | None = None
    """GPUs of an NN worker, by default 1 with `train.device=cuda`, else none."""


PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?|node:(\d{1,4})")
"""A processor, a range of them, or those of a NUMA node."""


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_list_of_processors(text: str) -> str:
    for part in text.split(","):
        found = PART.fullmatch(part)
        if found is None or (found[2] and int(found[1]) > int(found[2])):
            raise ValueError(f"{part or 'nothing'} is no processor; name some, such as 0-3,8 or node:0")
    return text


Processors = Annotated[str, AfterValidator(_is_list_of_processors), BeforeValidator(_text_of_number)]
"""Processors of a machine as Linux numbers them, such as `0-3,8`, or `node:0` for those of a NUMA node."""
PinnedTo = Processors | tuple[Processors, ...]
"""Processors for all replicas of a role, or a list with those of each."""
