"""Versions of a published model: `version.json` of each version's folder, and the version to serve.

    DIR/current.json          the newest version; the publisher replaces it at once, last
    DIR/pinned.json           after a rollback: the version to serve instead
    DIR/base-00000012/        a whole model, as `persia export` writes it
    DIR/delta-00000013/       what has changed since the version before

A version is its base and all deltas up to its number; `chain_of` lists them. A folder of a version appears whole and
never changes. So a folder with a `version.json` is complete, unless a disk or a copy has damaged it. Each file has one
writer: the publisher, or the command that rolls back.

DIR may be at a URI. A version is sent there from a local folder file by file, its `version.json` last, and
`current.json` after that; `version.json` is removed first. So a reader of the store finds whole versions only, and
after a kill the next process sends what is missing.
"""

import re
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from persia_cli.errors import CheckpointError, FormatError, UserError, one_line
from persia_cli.serving.description import MODEL, Amount, FileNote, read_description, require_files
from persia_cli.storage.checked_json import checked, read_checked
from persia_cli.storage.locations import (
    Location,
    draft_of,
    location_of,
    modified_s,
    publish,
    put,
    reading,
    remove,
    remove_file,
    subfolders,
    writing_file,
)

FORMAT_VERSION = 2
VERSION, CURRENT, PINNED = "version.json", "current.json", "pinned.json"
LOCAL = "versions"
"""Folder of a run directory with the versions that are sent to a URI."""
FOLDER = re.compile(r"(base|delta)-(\d{8,})")
Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
KEPT = 3
"""Number of newest versions that can be served at once, without a rollback."""
BLOCK = 2**22
"""Bytes that are copied at once."""
GRACE_S = 600.0
"""Seconds for which any version stays: a server may be reading its files."""


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a description; the type of every value is checked."""


class Version(_Described, frozen=True, forbid_unknown_fields=True):
    """The description of a version, `version.json`."""

    format_version: int
    version: Number
    parent: Number | None
    """The version that this one changes; None for a base."""
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

    @property
    def is_base(self) -> bool:
        """True for a whole model."""
        return self.parent is None

    @property
    def folder(self) -> str:
        """Name of the version's folder."""
        return f"{'base' if self.is_base else 'delta'}-{self.version:08d}"


class Current(_Described, frozen=True, forbid_unknown_fields=True):
    """The content of `current.json` and `pinned.json`."""

    format_version: int
    version: Number


class _AnyFormat(msgspec.Struct):
    """The common part of descriptions of all formats."""

    format_version: int | None = None


_ANY = msgspec.json.Decoder(_AnyFormat)
_VERSION = msgspec.json.Decoder(Version)
_CURRENT = msgspec.json.Decoder(Current)


def pinned_version(folder: Location) -> int | None:
    """Return the version to which servers are rolled back; None if they follow. Raises CheckpointError."""
    pinned: Current | None = _read(folder / PINNED, _CURRENT)
    return None if pinned is None else pinned.version


def served_version(folder: Location) -> int:
    """Return the version to serve; raises UserError if the folder has none, CheckpointError."""
    if (pinned := pinned_version(folder)) is not None:
        return pinned
    current: Current | None = _read(folder / CURRENT, _CURRENT)
    if current is None:
        raise UserError(f"{folder} has no published model: there is no {CURRENT}")
    return current.version


def write_served(folder: Location, version: int, name: str = CURRENT) -> None:
    """Make a version the newest one, or the one that is pinned, at once and safely; raises DiskError."""
    put(folder / name, checked(Current(FORMAT_VERSION, version)))


def read_version(folder: Location) -> Version:
    """Return the description of the version in a folder such as `base-00000012`; raises UserError, CheckpointError."""
    if (version := _version_in(folder)) is None:
        raise UserError(f"{folder} is no version of a published model: it has no {VERSION}")
    return version


def _version_in(folder: Location) -> Version | None:
    version: Version | None = _read(folder / VERSION, _VERSION)
    if version is not None and version.folder != folder.name:
        raise CheckpointError(f"{folder / VERSION} describes {version.folder}; copy the folder anew")
    return version


def version_text(version: Version) -> bytes:
    """Return the content of `version.json`."""
    return checked(version)


def folders_of(folder: Location) -> dict[int, Location]:
    """Return the folders that have names of versions by number, in order; those at a URI may be incomplete."""
    names = ((FOLDER.fullmatch(path.name), path) for path in subfolders(folder))
    found = {int(name[2]): path for name, path in names if name}
    return dict(sorted(found.items()))


def versions_of(folder: Path) -> dict[int, Path]:
    """Return the folders of all versions by number, in order; none if there is no such folder."""
    return {number: path for number, path in folders_of(folder).items() if (path / VERSION).is_file()}  # type: ignore[misc]


def chain_of(folder: Location, number: int) -> list[Version]:
    """Return the descriptions of a version's base and deltas, in the order in which they apply.

    Raises UserError if there is no such version, CheckpointError if one that it needs is missing or damaged.
    """
    folders, chain = folders_of(folder), list[Version]()
    at: int | None = number
    while at is not None:
        version = _version_in(folders.pop(at)) if at in folders else None
        if version is None and not chain:
            raise missing_version(folder, number, folders)
        if version is None:
            raise CheckpointError(f"version {number} needs version {at}, which is missing in {folder}")
        chain.append(version)
        at = version.parent
    return chain[::-1]


def missing_version(folder: Location, number: int, known: Iterable[int]) -> UserError:
    """Return the error for a version that a folder does not have."""
    shown = ", ".join(map(str, list(known)[-5:])) or "none"
    return UserError(f"{folder} has no version {number}; the newest are {shown}")


def last_version(folder: Location) -> Version | None:
    """Return the newest complete version of a folder, None if it has none; raises CheckpointError."""
    return next(filter(None, map(_version_in, reversed(folders_of(folder).values()))), None)


def require_publishable(address: str, run: str, is_new: bool = False) -> None:
    """Create a folder for the versions of a run if there is none; `address` is its path or URI.

    A new run has no versions yet.

    Raises UserError if it has those of another run, DiskError if it cannot be written to, CheckpointError if its last
    version is damaged.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"publish needs {missing[0]}, which is not installed; pip install 'persia-cli[export]'")
    folder = location_of(address)
    if (last := last_version(folder)) is not None and (is_new or last.run != run):
        raise UserError(f"{folder} has versions of another run ({last.run}); choose another folder for {run}")
    put(probe := folder / "probe", b"")
    remove_file(probe)


def remove_old(folder: Path, pinned: int | None) -> None:
    """Remove versions that neither the newest ones nor the pinned one need; raises OSError, DiskError."""
    versions = versions_of(folder)
    wanted = {*list(versions)[-KEPT:], *(number for number in versions if number == pinned)}
    needed = {each.version for number in wanted for each in chain_of(folder, number)}
    # A base is removed after its deltas, so that a chain is never broken in the middle.
    for number in reversed([number for number in versions if number not in needed]):
        if time.time() - modified_s(versions[number] / VERSION) > GRACE_S:
            remove(versions[number], VERSION)


class Mirror:
    """The copy of a local published folder at a URI, which no other process writes."""

    def __init__(self, folder: Path, store: Location) -> None:
        """Raises UserError if the store has versions, and the folder none: the numbers of new ones would be taken."""
        self._folder, self._store = folder, store
        self._sent = {place.name for place in folders_of(store).values() if (place / VERSION).is_file()}
        if self._sent and not versions_of(folder):
            raise UserError(f"{store} has versions, and {folder} has none to continue; choose another URI")

    def send(self) -> None:
        """Send what is new; raises OSError, DiskError, CheckpointError."""
        versions = {path.name: path for path in versions_of(self._folder).values()}
        for name in [name for name in versions if name not in self._sent]:
            paths = [path.relative_to(versions[name]) for path in versions[name].rglob("*") if path.is_file()]
            for path in sorted(paths, key=lambda path: (path.name == VERSION, path)):
                _copy(versions[name] / path, self._store / name / str(path))
            self._sent.add(name)
        put(self._store / CURRENT, (self._folder / CURRENT).read_bytes())

    def remove_old(self) -> None:
        """Remove what is not in the folder any more; raises OSError, DiskError."""
        versions = {path.name for path in versions_of(self._folder).values()}
        for name in sorted(self._sent - versions, reverse=True):  # bases last
            remove(self._store / name, VERSION)
            self._sent.remove(name)


def fetch(store: Location, folder: Path, number: int) -> None:
    """Copy a version and those that it needs from a store into a folder, and remove those that the store has no more.

    Raises UserError, CheckpointError, DiskError.
    """
    there, at = folders_of(store), number
    for known, place in folders_of(folder).items():
        if known not in there:
            remove(place, VERSION)
    while True:
        if at not in there:
            raise missing_version(store, at, there)
        place, copy = there[at], folder / there[at].name
        if not (copy / VERSION).is_file():
            _fetch(place, copy)
        parent = read_version(copy).parent
        if parent is None:
            return
        at = parent


def _fetch(place: Location, folder: Path) -> None:
    """Copy the folder of a version; raises CheckpointError for a file that is not as its version lists it."""
    version, draft = read_version(place), draft_of(folder)
    assert isinstance(draft, Path)
    files = version.files
    if version.is_base:
        _copy(place / MODEL, draft / MODEL)
        files = [*files, *read_description(draft).files]
    for file in files:
        if file.path != MODEL:
            _copy(place / file.path, draft / file.path)
    require_files(draft, files, contents=True)
    publish(folder, draft, VERSION, version_text(version))


def _copy(source: Location, target: Location) -> None:
    with reading(source) as content, writing_file(target) as sink:
        while part := content.read(BLOCK):
            sink.write(part)


def _read(path: Location, decoder: Any) -> Any:
    """Return the content of a file, None if there is none."""
    try:
        content = read_checked(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; copy it anew") from error
    try:
        found = _ANY.decode(content).format_version
        if found != FORMAT_VERSION:
            raise FormatError(f"{path} has format version {found}, and this persia reads {FORMAT_VERSION}")
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}; copy it anew") from error
