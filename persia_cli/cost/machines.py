"""The machines file of `persia plan`: kinds of machines, the roles on them, and their prices."""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from persia_cli.config.schema.base import NUMBER, Node, Positive
from persia_cli.config.schema.embedding import Bytes
from persia_cli.cost.model import TERMS
from persia_cli.errors import UserError, one_line

Number = Annotated[int, Field(gt=0, le=10**6), NUMBER]
RoleName = Literal["data-loader", "embedding-worker", "embedding-server", "nn-worker"]


class MachineGroup(Node):
    """Equal machines, and the roles that run on them."""

    name: str
    count: Number = 1
    cores: Number
    memory: Bytes
    """Of one machine, such as 120GB."""
    network: Positive | None = None
    """Gbit/s of one machine in each direction."""
    gpus: Annotated[int, Field(ge=0, le=64), NUMBER] = 0
    gpu_tflops: Positive | None = None
    """Peak of one GPU in 10^12 operations per second, in the precision of the network."""
    price_per_hour: Positive | None = None
    roles: tuple[RoleName, ...] = ("data-loader", "embedding-worker", "embedding-server", "nn-worker")

    @model_validator(mode="after")
    def _gpus_have_a_speed(self) -> "MachineGroup":
        if self.gpus and "nn-worker" in self.roles and self.gpu_tflops is None:
            raise ValueError("gpu_tflops is missing, the peak of a GPU that trains the network, such as 19.5")
        return self


class MachinesFile(Node):
    """The machines of a plan, and what it assumes about them."""

    machines: Annotated[tuple[MachineGroup, ...], Field(min_length=1)]
    assumptions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _all_roles_have_machines(self) -> "MachinesFile":
        missing = [role for role in TERMS if not any(role in kind.roles for kind in self.machines)]
        if missing:
            raise ValueError(f"no machine has the role {missing[0]}; name it in roles")
        return self


def read_machines(path: Path) -> MachinesFile:
    """Read a machines file; raises UserError with the first mistake in it."""
    try:
        return MachinesFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"--machines {path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--machines {path}: {one_line(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        known = ", ".join((MachineGroup if where.startswith("machines.") else MachinesFile).model_fields)
        reason = f"unknown field; there are {known}" if first["type"] == "extra_forbidden" else first["msg"]
        raise UserError(f"--machines {path}: {where}: {one_line(Exception(reason))}".replace(": :", ":")) from error
