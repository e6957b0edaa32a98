"""A checkpoint together with its ancestors: a full one, then one of changes after the other.

A file of changed rows has the name of the file with all rows of the same partitions, in an earlier checkpoint of the
chain. So each name has a history of its own, which ends at the newest file that has all rows.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from persia_cli.errors import CheckpointError
from persia_cli.storage.checked_json import CHECKED
from persia_cli.storage.places import Place
from persia_cli.storage.reading_ahead import read_ahead
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    Parent,
    checkpoint_folder,
    decode_manifest,
    read_manifest,
    verify,
)
from persia_cli.store.checkpoints.record_batches import (
    hashed_batches,
    record_batches,
    rows_by_table,
    understanding_rows,
)
from persia_cli.store.layout import EmbeddingLayout, partitions_of
from persia_cli.wire.reports import SavedFile, SavedRows

Batches = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True)
class RowFile:
    """All rows of a range of partitions: a file that has them all, and those of the changes after it."""

    rows: SavedRows
    """The rows of the newest file; `all_tables` are the rows of all files together."""
    tables: tuple[str, ...]
    """The tables of the group, in the order of rows with equal keys."""
    parts: tuple[tuple[Place, SavedFile], ...]
    """Files of rows, and of ids whose rows were deleted, newest first; of one checkpoint, those of ids come last."""

    @property
    def path(self) -> Place:
        """The newest file of rows."""
        return self.parts[0][0]

    def verify(self, on_bytes: Callable[[int], None] = lambda nbytes: None) -> None:
        """Compare the content of every file with its checksum; raise CheckpointError as `manifest.verify` does."""
        for path, file in self.parts:
            verify(path, file, on_bytes)

    @contextmanager
    def checked_batches(self, on_bytes: Callable[[int], None]) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the result of `batches`, and compare the content of every file with its checksum, as `verify` does.

        Batches are read ahead on a thread. A single file is read once, and its checksum is known only after the last
        batch: if this raises CheckpointError, the batches before that are not valid.
        """
        try:
            batches = self._counted(self._checked(on_bytes))
            with understanding_rows(self.path), closing(read_ahead(batches)) as ahead:
                yield ahead
        except CheckpointError:
            # Whatever the first error was: that a file has changed is what its user needs to know.
            self.verify()
            raise

    def batches(self) -> Batches:
        """Yield every row once, from the newest checkpoint that has it, in the order of a file with all rows.

        It needs the memory of one record batch of each file. Raise CheckpointError for a file that is missing or not a
        file of rows, for other numbers of rows than were saved, and, if there are changes, for rows that are not in
        order.
        """
        return self._counted(self._merged() if len(self.parts) > 1 else self._as_saved())

    def _counted(self, batches: Batches) -> Batches:
        with closing(batches):
            yield from _all_of((self,), batches)

    def _as_saved(self) -> Batches:
        with record_batches(self.path) as batches:
            yield from _validated(batches)

    def _checked(self, on_bytes: Callable[[int], None]) -> Batches:
        if len(self.parts) > 1:
            self.verify(on_bytes)
            yield from self._merged()
            return
        with hashed_batches(*self.parts[0], on_bytes) as batches:
            yield from _validated(batches)

    def _merged(self) -> Batches:
        # Imported late: the coordinator and the driver read manifests of chains, and load no kernels.
        from persia_cli.store.checkpoints.merged_rows import RowSource, merged_batches

        with ExitStack() as stack:
            sources = [stack.enter_context(closing(RowSource(path, self.tables))) for path, _ in self.parts]
            yield from merged_batches(sources)


class ColdRowFile(RowFile):
    """Rows that were not in memory: a list of segments, then those, the oldest first. Rows are in no order of keys."""

    def _checked(self, on_bytes: Callable[[int], None]) -> Batches:
        return self._cold(on_bytes)

    def _merged(self) -> Batches:
        return self._cold(None)

    def _cold(self, on_bytes: Callable[[int], None] | None) -> Batches:
        from persia_cli.store.checkpoints.cold_files import cold_batches  # late, as above

        with understanding_rows(self.path):
            yield from cold_batches(self.parts, on_bytes)


def in_order(memory: RowFile, cold: RowFile) -> Batches:
    """Yield the rows of a file and the cold ones of the same partitions, in the order of keys.

    It sorts the cold rows in a temporary folder. Raise CheckpointError as `RowFile.batches` does.
    """
    from persia_cli.store.checkpoints.merged_rows import RowSource, merged_batches, write_runs  # late, as above

    with TemporaryDirectory(prefix="persia-order-") as folder, ExitStack() as stack:
        runs = write_runs(cold.batches(), cold.tables, Path(folder))
        # The log comes first: memory's files of changes list rows that moved there as deleted.
        paths = [*runs, *(path for path, _ in memory.parts)]
        sources = [stack.enter_context(closing(RowSource(path, memory.tables))) for path in paths]
        yield from _all_of((memory, cold), merged_batches(sources))


def _all_of(files: Sequence[RowFile], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, and require that they have all rows of the files that were saved."""
    found = Counter[str]()
    for batch in batches:
        found.update(rows_by_table(batch))
        yield batch
    saved = sum((Counter(file.rows.all_tables) for file in files), Counter[str]())
    if found != saved:
        more = sum(len(file.parts) for file in files) - 1
        before = f", with the {more} files that it depends on," if more else ""
        raise CheckpointError(
            f"{files[0].path}{before} has {dict(found)} rows of its tables, but {dict(saved)} were saved"
        )


def _validated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        batch.validate(full=True)
        yield batch


@dataclass(frozen=True)
class Chain:
    """A checkpoint and its ancestors, the full one first; `folders` and `manifests` are in the same order."""

    folders: tuple[Place, ...]
    manifests: tuple[Manifest, ...]

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint itself."""
        return self.manifests[-1]

    def row_files(self, with_dense: bool) -> list[RowFile]:
        """Return the rows of all partitions, by name, without those of dense weights unless `with_dense`.

        Rows that were in memory come first, each file in the order of keys, then those of cold logs.
        """
        return [
            *(self._row_file(file) for file in self.manifest.row_files(with_dense)),
            *(
                cold_row_file(self.folders[-1], self.manifest, listed)
                for listed in self.manifest.cold_files(with_dense)
            ),
        ]

    def _row_file(self, newest: SavedFile) -> RowFile:
        assert newest.rows is not None
        parts: list[tuple[Place, SavedFile]] = []
        for folder, manifest in zip(reversed(self.folders), reversed(self.manifests), strict=True):
            own = {file.name: file for file in manifest.row_files(with_dense=True)}[newest.name]
            gone = [file for file in manifest.deleted_files() if file.name == newest.name]
            parts += [(folder / file.folder / file.name, file) for file in (own, *gone)]
            if own.rows is not None and own.rows.changed_since is None:
                break
        return RowFile(newest.rows, self.manifest.tables_of(newest.rows.group), tuple(parts))


def cold_row_file(folder: Place, manifest: Manifest, listed: SavedFile) -> ColdRowFile:
    """Return the cold rows of one of `Manifest.cold_files` of the checkpoint in `folder`."""
    assert listed.rows is not None
    files = [listed, *manifest.segments_of(listed)]
    parts = tuple((folder / file.folder / file.name, file) for file in files)
    return ColdRowFile(listed.rows, manifest.tables_of(listed.rows.group), parts)


def read_chain(folder: Place) -> Chain:
    """Return a checkpoint with its ancestors, after the checks of `read_manifest` on each of them.

    Raise CheckpointError as `read_manifest` does, and for a parent that is missing, is not the one for which the
    changes were saved, or does not fit them.
    """
    folders, manifests = [folder], [read_manifest(folder)]
    while (parent := manifests[0].parent) is not None:
        before = _parent_folder(folders[0], parent)
        manifest = read_manifest(before)
        if gap := _gap(manifests[0], manifest):
            raise CheckpointError(f"{folders[0]} does not fit {before}, which it depends on: {gap}")
        folders.insert(0, before)
        manifests.insert(0, manifest)
    return Chain(tuple(folders), tuple(manifests))


def manifest_digest(folder: Place) -> str:
    """Return the checksum with which the manifest of a checkpoint begins; raise CheckpointError if it has none."""
    try:
        opening = CHECKED.match((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from error
    if opening is None:
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it does not begin with its own checksum")
    return opening[1].decode()


def is_divided(manifest: Manifest, layout: EmbeddingLayout, servers: int) -> bool:
    """Return True if a checkpoint's files have the partitions of so many servers, so that these can save changes to it.

    Otherwise the servers would need the changes of partitions that others own.
    """
    expected = {
        (group.number, group.partitions, own.start, own.stop)
        for group in layout.groups
        for server in range(servers)
        if len(own := partitions_of(group.partitions, server, servers))
    }
    return {file.rows.place for file in manifest.row_files(with_dense=True) if file.rows} == expected


def ancestors(checkpoints: Place, steps: Iterable[int]) -> set[int]:
    """Return the steps of all ancestors of the checkpoints of `steps`; one whose manifest is damaged has none."""
    found: set[int] = set()
    for step in steps:
        parent = _parent_of(checkpoint_folder(checkpoints, step))
        while parent is not None and parent not in found:
            found.add(parent)
            parent = _parent_of(checkpoint_folder(checkpoints, parent))
    return found


def newest_whole(checkpoints: Place, steps: Iterable[int]) -> int | None:
    """Return the newest of these steps whose checkpoint passes, with its ancestors, the checks of `read_chain`."""
    for step in sorted(steps, reverse=True):
        try:
            read_chain(checkpoint_folder(checkpoints, step))
        except CheckpointError:
            continue
        return step
    return None


def _parent_of(folder: Place) -> int | None:
    """Return the step of a checkpoint's parent, as far as its manifest can be read."""
    try:
        parent = decode_manifest(folder).parent
    except CheckpointError:
        return None
    return parent.step if parent else None


def _parent_folder(folder: Place, parent: Parent) -> Place:
    """Return the folder of a checkpoint's parent, a sibling; raise CheckpointError unless it is the same."""
    whole = folder.resolve() if isinstance(folder, Path) else folder
    before = checkpoint_folder(whole.parent, parent.step)
    try:
        digest = manifest_digest(before)
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder} has only what changed since step {parent.step}, and cannot be read without {before}: {error}; "
            "use another checkpoint"
        ) from error
    if digest != parent.sha256:
        raise CheckpointError(
            f"{folder} has only what changed since the checkpoint of step {parent.step} whose manifest has the sha256 "
            f"{parent.sha256[:12]}…, and {before} is another one ({digest[:12]}…); use another checkpoint"
        )
    return before


def _gap(manifest: Manifest, parent: Manifest) -> str | None:
    """Return a description of why the changes of a checkpoint cannot be applied to its parent, or None."""
    before = {file.name: file.rows for file in parent.row_files(with_dense=True)}
    for file in manifest.row_files(with_dense=True):
        if file.rows is None or file.rows.changed_since is None:
            continue
        other = before.get(file.name)
        if other is None or other.place != file.rows.place:
            return f"{file.name} has what changed in partitions of which the parent has no such file"
    if [(each.name, each.dim, each.group) for each in manifest.tables] != [
        (each.name, each.dim, each.group) for each in parent.tables
    ]:
        return "its tables are others"
    return None
