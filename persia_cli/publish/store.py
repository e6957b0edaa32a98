"""Published folders at a URI: versions are sent there from a local folder, and fetched into one.

A version is sent file by file, its `version.json` last, and `current.json` after that; `version.json` is removed first.
So a reader of the store finds whole versions only, and after a kill the next process sends what is missing.
"""

from pathlib import Path

from persia_cli.errors import UserError
from persia_cli.publish.version import (
    CURRENT,
    VERSION,
    folders_of,
    missing_version,
    read_version,
    version_text,
    versions_of,
)
from persia_cli.serving.description import MODEL, read_description, require_files
from persia_cli.storage.locations import Location, draft_of, publish, put, reading, remove, writing_file

BLOCK = 2**22
"""Bytes that are copied at once."""


class Mirror:
    """The copy of a local published folder at a URI, which no other process writes."""

    def __init__(self, folder: Path, store: Location) -> None:
        """Raises UserError if the store has versions, and the folder none: the numbers of new ones would be taken."""
        self._folder, self._store = folder, store
        self._sent = {place.name for place in folders_of(store).values() if (place / VERSION).is_file()}
        if self._sent and not versions_of(folder):
            raise UserError(f"{store} has versions, and {folder} has none to continue; choose another URI")

    def update(self) -> None:
        """Send what is new, and remove what is not there any more; raises OSError, DiskError, CheckpointError."""
        versions = {path.name: path for path in versions_of(self._folder).values()}
        for name in [name for name in versions if name not in self._sent]:
            paths = [path.relative_to(versions[name]) for path in versions[name].rglob("*") if path.is_file()]
            for path in sorted(paths, key=lambda path: (path.name == VERSION, path)):
                _copy(versions[name] / path, self._store / name / str(path))
            self._sent.add(name)
        put(self._store / CURRENT, (self._folder / CURRENT).read_bytes())
        for name in sorted(self._sent - versions.keys(), reverse=True):  # bases last
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
