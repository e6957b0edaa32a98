"""Sizes of models in parameters, and generated ids of Criteo's shape that such a model has."""

import re

from persia_cli.config.schema import Run
from persia_cli.config.schema.dataset import GeneratedDataset, Generator
from persia_cli.errors import UserError

SKEW = 1.1
"""Exponent of the ids' Zipf law, measured by numbers of distinct ids.

In 26 columns of Criteo Kaggle, 4,096 rows have 23,793 distinct ids, and 45,930 rows have 140,315. With this exponent,
the generator makes 23,887 and 139,999, in tables of the published sizes.
"""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST = 10**15
SMALL = 1e-3
"""Tables with fewer ids than this fraction of the largest one's have the same size in every model.

There are as many days and countries in a huge model as in a small one.
"""


def parse_sizes(text: str) -> list[int]:
    """Return the numbers of parameters in a text such as `10M,1B,100T`, ascending; raises UserError."""
    sizes = set()
    for part in text.split(","):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", part.strip().upper())
        size = round(float(found[1]) * UNITS[found[2]]) if found else 0
        if not 0 < size <= MOST:
            raise UserError(f"--sizes: {part!r} is no number of parameters up to 1000T; give such as 10M,1B,6.25T")
        sizes.add(size)
    return sorted(sizes)


def size_in_words(parameters: int) -> str:
    """Return a number of parameters with a unit, as `parse_sizes` reads it."""
    unit = next(unit for unit, value in reversed(UNITS.items()) if parameters >= value)
    return f"{parameters / UNITS[unit]:g}{' ' * bool(unit)}{unit}"


def cardinalities_of(shape: tuple[int, ...], ids: int) -> tuple[int, ...]:
    """Return tables with `ids` ids in all: large tables of `shape` multiplied by one factor, small ones unchanged.

    Raise UserError if the small ones have as many already.
    """
    least = SMALL * max(shape, default=0)
    fixed = sum(size for size in shape if size < least)
    large = sum(shape) - fixed
    if ids < fixed + len(shape) or not shape:
        raise UserError(
            f"--sizes: a model of {ids:,} ids is too small for the {len(shape)} tables of this shape; give a larger one"
        )
    return tuple(size if size < least else max(1, round(size * (ids - fixed) / large)) for size in shape)


def sized_run(run: Run, parameters: int, train_rows: int) -> Run:
    """Return the run with generated ids of a model with so many parameters, that is ids times `model.dim`.

    Raise UserError if the run's data set has no generator, whose shape is that of the ids.
    """
    shape = run.dataset.generator
    if shape is None:
        raise UserError("the ids of a model need a shape, and this data set has no dataset.generator; use conf=criteo")
    cardinalities = cardinalities_of(shape.cardinalities, parameters // run.model.dim)
    generator = Generator.model_validate(
        shape.model_dump() | {"train_rows": train_rows, "cardinalities": cardinalities, "zipf": SKEW}
    )
    return run.model_copy(update={"dataset": GeneratedDataset(kind="generated", generator=generator)})
