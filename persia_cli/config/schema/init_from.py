"""The model that a new run begins with, instead of rows and weights drawn from the seed."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from persia_cli.config.schema.base import Node

DENSE, OPTIMIZER = "dense", "optimizer"
"""Values of `skip` that are not tables: the dense weights, and the state of all optimizers."""


class VectorFile(Node):
    """Pre-trained vectors of one table in Parquet files: a column of ids and a column of lists of numbers."""

    path: str
    """A Parquet file, a folder of them, or a URI such as s3://bucket/folder."""
    id: str | None = None
    """Column of ids; by default `id`, or the only column that holds no lists."""
    vector: str | None = None
    """Column of vectors; by default `vector`, or the only column that holds lists."""
    ids: Literal["integer", "text"] | None = None
    """Source of the ids, as of a sparse feature: `integer`, the value itself, as `persia checkpoint export` writes it;
    `text`, the hash of its text. By default it is that of the table's features; where it is text, and the column holds
    integers, it must be given."""


def _path_alone(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class InitFrom(Node):
    """The source of a new run's first rows and weights: a saved model, pre-trained vectors, or both.

    Step, order of samples and metrics are the new run's own. A run that is resumed loads its own checkpoint instead.
    """

    path: str | None = None
    """A run directory, of which the best checkpoint is taken (without `checkpoint.best_by`, the newest), or the folder
    of a checkpoint, here or as a URI."""
    tables: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Table of the saved model -> table of this run that begins with its rows, or several; tables that are not named
    here go to the table of the same name."""
    skip: tuple[str, ...] = ()
    """Tables of this run that begin anew; `dense` for the dense weights, `optimizer` for the state of all optimizers.
    """
    vectors: dict[str, Annotated[VectorFile, BeforeValidator(_path_alone)]] = Field(default_factory=dict)
    """Table of this run -> Parquet files with the vectors that it begins with; a path is short for `{path: PATH}`."""

    def targets(self) -> dict[str, tuple[str, ...]]:
        """Return `tables` with a list of tables for each."""
        return {old: (new,) if isinstance(new, str) else new for old, new in self.tables.items()}

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.path is None and not self.vectors:
            raise ValueError("init_from needs a source: give path (a run or a checkpoint), vectors (Parquet files)")
        if self.path is None and self.tables:
            raise ValueError("init_from.tables renames tables of a saved model; give init_from.path too")
        return self

    @model_validator(mode="after")
    def _tables_have_one_source(self) -> Self:
        sources: dict[str, str] = {}
        wrong = []
        named = [(new, f"table {old}") for old, targets in self.targets().items() for new in targets]
        for new, source in [*named, *((table, file.path) for table, file in self.vectors.items())]:
            if new in sources:
                wrong.append(
                    f"init_from: table {new} would begin with the rows of {sources[new]} and of {source}; ids may be "
                    "in both, so give it one of them"
                )
            if new in self.skip:
                wrong.append(f"init_from: table {new} is to begin with {source}, and is in init_from.skip; choose one")
            sources[new] = source
        if wrong:
            raise ValueError("\n".join(wrong))
        return self


Source = Annotated[InitFrom, BeforeValidator(_path_alone)]
"""The group of keys; a path alone is short for `{path: PATH}`."""
