"""The description of an exported model, `model.json`: inputs and outputs, tables, checksums of it and of its files."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from persia_cli.errors import CheckpointError, UserError, one_line
from persia_cli.metric import Link
from persia_cli.storage.checked_json import ChangedError, checked, read_checked

FORMAT_VERSION = 2
MODEL, NETWORK, FEATURES, GOLDEN, ROWS = "model.json", "dense.onnx", "features.yaml", "golden.arrow", "rows"
"""Names of the files of an exported model, and of its folder of rows."""
Form = Literal["float32", "bfloat16", "float16", "int8", "int4"]
"""The dtypes of rows in files."""
Missing = Literal["zeros", "init", "rare"]
"""The vector of an id without a row.

Zeros; or its first value in training; or the row of rare ids, which preparation replaces by one id, and zeros in a
table without such a row.
"""
Trained = Literal["float32", "bfloat16", "float16", "int8"]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Word = Annotated[int, msgspec.Meta(ge=0)]
"""A number below 2^64, a bound that msgspec lacks."""
_CHUNK = 2**22


def stride_of(dim: int, form: Form) -> int:
    """Return the bytes of a row."""
    match form:
        case "float32":
            return 4 * dim
        case "bfloat16" | "float16":
            return 2 * dim
        case "int8":
            return dim + 8
        case "int4":
            return (dim + 1) // 2 + 4


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the description; the type of every value is checked."""


class FrozenTable(_Part, frozen=True, forbid_unknown_fields=True):
    """A table: the place of its rows in the files of its group, and the first values of ids without a row."""

    name: str
    rows: Amount
    first_row: Amount
    first_bucket: Amount
    homes: Positive
    buckets: Positive
    """Its buckets of the index are first_bucket up to first_bucket + buckets; keys have their homes in the first."""
    salt: Word
    init_bound: float
    admission: Amount
    """An id gets a row if its 24-bit draw is below this value."""
    min_count: Positive
    """Number of the look-up at which an id gets a row in training."""
    rounds: Annotated[int, msgspec.Meta(ge=0, le=64)]
    size: Amount
    """Rounds of a hash stack and rows of each; 0 if each id has its own row."""


class FrozenGroup(_Part, frozen=True, forbid_unknown_fields=True):
    """Tables whose rows are in the same two files, `rows/N.index` and `rows/N.values`."""

    number: Amount
    dim: Positive
    form: Form
    stride: Positive
    """Bytes of a row."""
    trained: Trained
    """The dtype of rows in training."""
    tables: list[FrozenTable]

    @property
    def index(self) -> str:
        """Path of the index in the folder."""
        return f"{ROWS}/{self.number}.index"

    @property
    def values(self) -> str:
        """Path of the rows' values in the folder."""
        return f"{ROWS}/{self.number}.values"

    @property
    def buckets(self) -> int:
        """Number of buckets of the index."""
        return sum(table.buckets for table in self.tables)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(table.rows for table in self.tables)


class FrozenFeature(_Part, frozen=True, forbid_unknown_fields=True):
    """A sparse feature, in the order of ids in a batch."""

    name: str
    group: Amount
    table: str
    pooling: Literal["sum", "mean", "sqrtn", "none"]
    max_length: Positive | None = None


class ModelInput(_Part, frozen=True, forbid_unknown_fields=True):
    """A field of a request, in the terms of the Open Inference Protocol."""

    name: str
    datatype: Literal["FP32", "FP64", "INT64", "UINT64", "BYTES"]
    shape: tuple[int, ...]
    """(-1,), one value for each sample, or (-1, -1), a list of ids for each."""


class ModelOutput(_Part, frozen=True, forbid_unknown_fields=True):
    """A prediction of each sample."""

    name: str
    label: str
    link: Link
    """The function from a logit to its prediction: `logistic`, `exp` or `identity`."""
    datatype: Literal["FP32"] = "FP32"
    shape: tuple[int, ...] = (-1,)


class FileNote(_Part, frozen=True, forbid_unknown_fields=True):
    """A file of the folder."""

    path: Annotated[str, msgspec.Meta(pattern=r"^(rows/)?[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
    nbytes: Amount
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ModelDescription(_Part, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An exported model."""

    format_version: int
    persia_version: str
    name: str
    run: str
    """Name of the run directory that was exported."""
    step: Amount
    samples: Amount
    """Steps and samples trained."""
    seed: Amount
    network: str
    """Kind of the network."""
    dense: Amount
    """Dense inputs of the network."""
    features: list[FrozenFeature]
    groups: list[FrozenGroup]
    inputs: list[ModelInput]
    outputs: list[ModelOutput]
    files: list[FileNote]
    version: Amount | None = None
    """Number of a published version; None of an export."""
    overlays: list[FrozenGroup] = []
    """For each group, the rows that have changed since its files were written; empty if there are none."""

    def note(self, path: str) -> FileNote:
        """Return size and checksum of a file."""
        return next(file for file in self.files if file.path == path)


def overlay_files(overlay: FrozenGroup) -> tuple[str, str, str]:
    """Return the paths of a group's changed rows: their index, their places in the file of values, and that file."""
    first = f"{ROWS}/{overlay.number}.overlay"
    return first, f"{first}.places", f"{first}.values"


class _Versioned(msgspec.Struct):
    """The common part of descriptions of all versions."""

    format_version: int | None = None


_VERSION = msgspec.json.Decoder(_Versioned)
_DECODER = msgspec.json.Decoder(ModelDescription)


def read_description(folder: Path) -> ModelDescription:
    """Return the description of an exported model; raises UserError for a folder that has none, CheckpointError."""
    path = folder / MODEL
    try:
        content = read_checked(path)
    except OSError as error:
        raise UserError(
            f"{folder} is no exported model: {MODEL} cannot be read ({error.strerror}); make one with "
            "persia export RUN -o FOLDER, or wait for the first version of a training with publish.to"
        ) from error
    except ValueError as error:
        if not isinstance(error, ChangedError):
            _refuse_other_format(path, path.read_bytes())
        raise CheckpointError(f"{path} is damaged: {error}; export the run again") from error
    _refuse_other_format(path, content)
    try:
        description = _DECODER.decode(content)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}; export the run again") from error
    _require_consistent(path, description)
    return description


def _refuse_other_format(path: Path, content: bytes) -> None:
    """Raise CheckpointError for a description of another format version; version 1 had no checksum."""
    try:
        version = _VERSION.decode(content).format_version
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    if version not in (None, FORMAT_VERSION):
        raise CheckpointError(
            f"{path} has format version {version}, and this persia reads {FORMAT_VERSION}; export the run again"
        )


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of a model's description, which has the checksums of all its files; raises UserError."""
    try:
        return hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{folder / MODEL} cannot be read: {error.strerror}") from error


def write_description(folder: Path, description: ModelDescription) -> None:
    """Write the description into a folder that no process reads yet."""
    (folder / MODEL).write_bytes(checked(description))


def note_of(folder: Path, path: str, on_bytes: Callable[[int], None] = lambda done: None) -> FileNote:
    """Return size and checksum of a file of the folder; calls `on_bytes` with the size of each part that was read."""
    digest, nbytes = hashlib.sha256(), 0
    with (folder / path).open("rb") as file:
        while part := file.read(_CHUNK):
            digest.update(part)
            nbytes += len(part)
            on_bytes(len(part))
    return FileNote(path, nbytes, digest.hexdigest())


def require_files(folder: Path, files: Sequence[FileNote], contents: bool) -> None:
    """Raise CheckpointError unless all files have their sizes and checksums; those of rows only with `contents`.

    Rows of a whole model are too many to be read at each start.
    """
    for file in files:
        is_read = contents or not file.path.startswith(f"{ROWS}/")
        path = folder / file.path
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise CheckpointError(f"{path} is missing; copy the whole folder, or write it anew")
        if size != file.nbytes or (is_read and note_of(folder, file.path) != file):
            raise CheckpointError(f"{path} is not the file that was written; copy the folder, or write it anew")


def _require_consistent(path: Path, description: ModelDescription) -> None:
    """Raise CheckpointError for parts that do not fit each other."""
    tables = {table.name: group.number for group in description.groups for table in group.tables}
    if [group.number for group in description.groups] != list(range(len(description.groups))):
        raise CheckpointError(f"{path} is damaged: its groups are not numbered from 0; export the run again")
    for feature in description.features:
        if tables.get(feature.table) != feature.group:
            raise CheckpointError(
                f"{path} is damaged: {feature.name} reads no table of its group; export the run again"
            )
    if max([description.seed, *(table.salt for group in description.groups for table in group.tables)]) >= 2**64:
        raise CheckpointError(f"{path} is damaged: its seed or a salt has more than 64 bits; export the run again")
    for group in description.groups:
        if group.stride != stride_of(group.dim, group.form):
            raise CheckpointError(
                f"{path} is damaged: rows of {group.dim} values in {group.form} do not have {group.stride} bytes; "
                "export the run again"
            )
        row, bucket = 0, 0
        for table in group.tables:
            if (table.first_row, table.first_bucket) != (row, bucket) or table.homes > table.buckets:
                raise CheckpointError(f"{path} is damaged: {table.name} lies elsewhere; export the run again")
            row, bucket = row + table.rows, bucket + table.buckets
    if description.overlays and [
        (each.number, each.stride, [table.name for table in each.tables]) for each in description.overlays
    ] != [(group.number, group.stride, [table.name for table in group.tables]) for group in description.groups]:
        raise CheckpointError(f"{path} is damaged: its changed rows are not of its groups; export the run again")
    names = {file.path for file in description.files}
    wanted = {
        NETWORK,
        FEATURES,
        GOLDEN,
        *(name for group in description.groups for name in (group.index, group.values)),
    }
    if names != wanted:
        raise CheckpointError(f"{path} is damaged: it lists other files than there must be; export the run again")
