"""Versions of a published model: `version.json` of each version's folder, and `current.json`.

    DIR/current.json          the version to serve; replaced at once, last
    DIR/base-00000012/        a whole model, as `persia export` writes it
    DIR/delta-00000013/       what has changed since the version before

A version is its base and all deltas up to its number; `chain_of` lists them. A folder of a version appears whole and
never changes. So a folder with a `version.json` is complete, unless a disk or a copy has damaged it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from persia_cli.disk import claim, writing
from persia_cli.errors import CheckpointError, FormatError, UserError, one_line
from persia_cli.serving.description import Amount, FileNote
from persia_cli.storage.checked_json import checked, read_checked
from persia_cli.storage.locations import put

FORMAT_VERSION = 1
VERSION, CURRENT, LOCK = "version.json", "current.json", "current.lock"
FOLDER = re.compile(r"(base|delta)-(\d{8,})")
Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
CLAIMS = 50
"""Number of attempts to lock the file, each of CLAIM_S: slow disks take seconds to replace `current.json`."""


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a description; the type of every value is checked."""


class VersionTable(_Described, frozen=True, forbid_unknown_fields=True):
    """The rows of a table in a version's folder."""

    name: str
    rows: Amount
    """Rows with a value: of a base all rows, of a delta new and changed ones."""
    deleted: Amount
    """Rows that the versions before may have, and this one has not."""


class Version(_Described, frozen=True, forbid_unknown_fields=True):
    """The description of a version, `version.json`."""

    format_version: int
    version: Number
    parent: Number | None
    """The version that this one changes; None for a base."""
    base: Number
    """The version of the base; of a base its own."""
    run: str
    """Name of the run directory."""
    start: str
    """The start of the run, which a resume or rollback changes."""
    step: Amount
    samples: Amount
    """Steps and samples trained."""
    time: float
    """When training was at this step, in seconds since 1970."""
    files: list[FileNote]
    """All files but `version.json`; of a base only `model.json`, which has the checksums of the others."""
    tables: list[VersionTable]

    @property
    def is_base(self) -> bool:
        """True for a whole model."""
        return self.parent is None

    @property
    def folder(self) -> str:
        """Name of the version's folder."""
        return f"{'base' if self.is_base else 'delta'}-{self.version:08d}"


class Current(_Described, frozen=True, forbid_unknown_fields=True):
    """The version to serve, `current.json`."""

    format_version: int
    version: Number
    pinned: bool = False
    """True after a rollback: the publisher continues to write versions, and leaves this file unchanged."""


class _AnyFormat(msgspec.Struct):
    """The common part of descriptions of all formats."""

    format_version: int | None = None


_ANY = msgspec.json.Decoder(_AnyFormat)
_VERSION = msgspec.json.Decoder(Version)
_CURRENT = msgspec.json.Decoder(Current)


def read_current(folder: Path) -> Current:
    """Return the version to serve; raises UserError if the folder has none, CheckpointError."""
    current: Current = _read(folder / CURRENT, _CURRENT, f"{folder} has no published model")
    return current


@contextmanager
def choosing(folder: Path) -> Iterator[None]:
    """Let no other process choose the version to serve meanwhile; raises DiskError, UserError if one does not end."""
    with writing(folder):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not any(claim(lock) for _ in range(CLAIMS)):
            raise UserError(f"another process chooses the version of {folder}; try again")
        yield
    finally:
        os.close(lock)


def write_current(folder: Path, version: int, pinned: bool = False) -> None:
    """Make a version the one to serve, at once and safely; raises DiskError."""
    put(folder / CURRENT, checked(Current(FORMAT_VERSION, version, pinned)))


def read_version(folder: Path) -> Version:
    """Return the description of the version in a folder such as `base-00000012`; raises UserError, CheckpointError."""
    version: Version = _read(folder / VERSION, _VERSION, f"{folder} is no version of a published model")
    if version.folder != folder.name:
        raise CheckpointError(f"{folder / VERSION} describes {version.folder}; copy the folder anew")
    if version.base > version.version or (version.parent or 0) >= version.version or (
        version.is_base != (version.base == version.version)
    ):  # fmt: skip
        raise CheckpointError(f"{folder / VERSION} is damaged: its parent or base cannot be right; copy it anew")
    if any(Path(file.path).is_absolute() or ".." in Path(file.path).parts for file in version.files):
        raise CheckpointError(f"{folder / VERSION} is damaged: it lists a file outside its folder; copy it anew")
    return version


def version_text(version: Version) -> bytes:
    """Return the content of `version.json`."""
    return checked(version)


def versions_of(folder: Path) -> dict[int, Path]:
    """Return the folders of all versions by number, in order; none if there is no such folder."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        name = FOLDER.fullmatch(path.name)
        if name and (path / VERSION).is_file():
            found[int(name[2])] = path
    return dict(sorted(found.items()))


def chain_of(folder: Path, number: int) -> list[Version]:
    """Return the descriptions of a version's base and deltas, in the order in which they apply.

    Raises UserError if there is no such version, CheckpointError if one that it needs is missing or damaged.
    """
    folders, chain = versions_of(folder), list[Version]()
    if number not in folders:
        known = ", ".join(map(str, list(folders)[-5:])) or "none"
        raise UserError(f"{folder} has no version {number}; the newest are {known}")
    at: int | None = number
    while at is not None:
        if at not in folders:
            raise CheckpointError(f"version {number} needs version {at}, which is missing in {folder}")
        chain.append(read_version(folders[at]))
        at = chain[-1].parent
    if {each.base for each in chain} != {chain[-1].version}:
        raise CheckpointError(f"the versions before version {number} in {folder} have different bases; copy them anew")
    return chain[::-1]


def last_version(folder: Path) -> Version | None:
    """Return the newest version of a folder, None if it has none; raises CheckpointError."""
    versions = versions_of(folder)
    return read_version(versions[max(versions)]) if versions else None


def require_publishable(folder: Path, run: str) -> None:
    """Create a folder for the versions of a run if there is none.

    Raises UserError if it has those of another run, DiskError if it cannot be written to, CheckpointError if its last
    version is damaged.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"publish needs {missing[0]}, which is not installed; pip install 'persia-cli[export]'")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder, so it can have no versions; choose another")
    if (last := last_version(folder)) is not None and last.run != run:
        raise UserError(f"{folder} has versions of the run {last.run}; choose another folder for {run}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with choosing(folder):
        pass  # it can be written to


def _read(path: Path, decoder: Any, otherwise: str) -> Any:
    try:
        content = read_checked(path)
    except OSError as error:
        raise UserError(f"{otherwise}: {path.name} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; copy it anew") from error
    try:
        found = _ANY.decode(content).format_version
        if found != FORMAT_VERSION:
            raise FormatError(f"{path} has format version {found}, and this persia reads {FORMAT_VERSION}")
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}; copy it anew") from error
