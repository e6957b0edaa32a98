"""An object store: only complete checkpoints are read, next to any others; leftovers go; replaced data is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.follow.files import scan_of
from persia_cli.data.follow.planner import planner_of
from persia_cli.data.read.files import DataFile
from persia_cli.data.read.row_groups import RowGroup, RowGroupReader, read_footer
from persia_cli.data.read.unchanged import content_of
from persia_cli.errors import CheckpointError, ConfigError, DataError
from persia_cli.storage.locations import Location, location_of, nbytes_below, put, subfolders, writing_file
from persia_cli.storage.remote import RemotePath
from persia_cli.store.checkpoints.claim import (
    WRITER,
    allow_to_continue,
    claim,
    remove_unfinished_of,
    require_writer,
    writer_of,
)
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    begin_checkpoint,
    checkpoint_folder,
    finished_steps,
    newest_checkpoint,
    publish,
    read_manifest,
    unfinished_folders,
    verify,
)
from persia_cli.store.checkpoints.retention import remove_unfinished
from tests.support.growing import table_of
from tests.support.runs import make_run
from tests.support.s3 import SECRET, ObjectStore, object_store
from tests.support.saved_rows import made_up_rows, write_run


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """Leaks are not checked, since the library holds connections to a store until the process ends."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def checkpoints(store: ObjectStore, request: pytest.FixtureRequest) -> RemotePath:
    return location_of(store.uri(request.node.name))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A checkpoint of step 9 on disk, and its manifest."""
    files = [made_up_rows(40, 8, 9, ("a", "b"), 1), made_up_rows(30, 8, 9, ("b",), 2)]
    folder = write_run(tmp_path_factory.mktemp("local") / "run", make_run(), 9, files)
    return folder, read_manifest(folder)


def upload(local: tuple[Path, Manifest], draft: Location) -> None:
    folder, manifest = local
    for file in manifest.files:
        with writing_file(draft / file.folder / file.name) as sink:
            sink.write((folder / file.folder / file.name).read_bytes())


def save(checkpoints: Location, local: tuple[Path, Manifest]) -> Location:
    draft = begin_checkpoint(checkpoints, 9)
    upload(local, draft)
    return publish(checkpoints, draft, local[1])


def test_a_published_checkpoint_has_the_files_of_the_disk(
    checkpoints: RemotePath, local: tuple[Path, Manifest]
) -> None:
    folder = save(checkpoints, local)
    assert (finished_steps(checkpoints), unfinished_folders(checkpoints)) == ([9], [])
    assert newest_checkpoint(checkpoints) == folder == checkpoint_folder(checkpoints, 9)
    assert location_of(checkpoints.uri.replace("s3://", "s3a://")) == checkpoints
    found = read_manifest(folder)
    for file, there in zip(found.files, local[1].files, strict=True):
        assert (file.name, file.xxh128, file.nbytes) == (there.name, there.xxh128, there.nbytes)
        verify(folder / file.folder / file.name, file)
    assert nbytes_below(folder) > sum(file.nbytes for file in found.files)
    assert SECRET not in str(folder) + repr(folder) + folder.uri + (folder / MANIFEST).read_bytes().decode()


def test_half_an_upload_is_never_read(checkpoints: RemotePath, local: tuple[Path, Manifest]) -> None:
    """Neither files without a manifest, nor a manifest at another place, nor one of other files."""
    draft = begin_checkpoint(checkpoints, 9)
    upload(local, draft)
    (draft / MANIFEST).write_bytes((local[0] / MANIFEST).read_bytes())
    put(checkpoints / "step-12.json" / MANIFEST, b"{}")
    put(checkpoints / "step-7x" / MANIFEST, (local[0] / MANIFEST).read_bytes())
    assert finished_steps(checkpoints) == []
    with pytest.raises(CheckpointError, match="has no complete checkpoint"):
        newest_checkpoint(checkpoints)
    with pytest.raises(CheckpointError, match="is not a complete checkpoint: it has no"):
        read_manifest(checkpoint_folder(checkpoints, 9))
    # A manifest whose files are missing, or have another size or content, is refused as a whole.
    forged = checkpoint_folder(checkpoints, 9)
    put(forged / MANIFEST, (local[0] / MANIFEST).read_bytes())
    with pytest.raises(CheckpointError, match="is missing; the checkpoint is incomplete"):
        read_manifest(forged)
    file = local[1].files[0]
    put(forged / file.folder / file.name, b"x" * file.nbytes)
    put(forged / local[1].files[1].folder / local[1].files[1].name, b"short")
    with pytest.raises(CheckpointError, match="has changed since it was saved: it has 5 bytes"):
        read_manifest(forged)
    with pytest.raises(CheckpointError, match="has changed since it was saved"):
        verify(forged / file.folder / file.name, file)


def test_drafts_of_a_killed_job_are_removed_despite_a_late_writer(
    checkpoints: RemotePath, local: tuple[Path, Manifest]
) -> None:
    killed = begin_checkpoint(checkpoints, 9)
    upload(local, killed)
    assert [folder.name for folder in unfinished_folders(checkpoints)] == ["step-9"]
    remove_unfinished(checkpoints)
    assert subfolders(checkpoints) == []
    upload(local, killed)  # by a writer that should have ended
    folder = save(checkpoints, local)
    upload(local, killed)
    for file in read_manifest(folder).files:
        verify(folder / file.folder / file.name, file)
        assert not file.folder.startswith(killed.name)


def test_a_run_claims_its_folder_and_another_run_is_refused(
    store: ObjectStore, local: tuple[Path, Manifest], tmp_path: Path
) -> None:
    uri = store.uri("claimed")
    own, other = tmp_path / "a", tmp_path / "b"
    own.mkdir(), other.mkdir()
    claim(uri, own, "here")
    checkpoints = location_of(uri)
    writer = writer_of(checkpoints)
    assert (writer.run_dir, writer.host) == (str(own), "here")
    upload(local, begin_checkpoint(checkpoints, 5))
    claim(uri, other, "there")  # nothing has been saved yet; its remains are removed
    assert subfolders(checkpoints) == []
    save(checkpoints, local)
    claim(uri, other, "elsewhere")  # with any name of its machine
    (tmp_path / "c").mkdir()
    with pytest.raises(ConfigError, match=rf"models/claimed has checkpoints of the run in {other} on elsewhere"):
        claim(uri, tmp_path / "c", "here")
    with pytest.raises(ConfigError, match=rf"{own} was taken over by {other} on elsewhere.* persia resume"):
        claim(uri, own, "here")
    shutil.copytree(other, tmp_path / "d")
    with pytest.raises(ConfigError, match=r"models/claimed has checkpoints of the run in"):
        claim(uri, tmp_path / "d", "elsewhere")
    (checkpoints / WRITER).write_bytes(b"{")
    with pytest.raises(ConfigError, match=rf"claimed/{WRITER} is damaged"):
        claim(uri, own, "here")


def test_a_claim_with_the_writers_name_takes_over_once(
    store: ObjectStore, local: tuple[Path, Manifest], tmp_path: Path
) -> None:
    uri = store.uri("taken")
    checkpoints = location_of(uri)
    former, late, next_one = (tmp_path / name for name in ("former", "late", "next"))
    for folder in (former, late, next_one):
        folder.mkdir()
    claim(uri, former, "here")
    save(checkpoints, local)
    for folder in (late, next_one):
        allow_to_continue(checkpoints, folder)
    require_writer(checkpoints, former)
    upload(local, begin_checkpoint(checkpoints, 11))
    remove_unfinished_of(next_one, uri)
    assert unfinished_folders(checkpoints) != []  # they are the former one's
    claim(uri, next_one, "there")
    assert unfinished_folders(checkpoints) == []
    require_writer(checkpoints, next_one)
    with pytest.raises(ConfigError, match=rf"{former} was taken over by {next_one} on there"):
        require_writer(checkpoints, former)
    upload(local, begin_checkpoint(checkpoints, 11))
    remove_unfinished_of(former, uri)
    assert unfinished_folders(checkpoints) != []  # they may be what the next one writes now
    for folder in (late, former):
        with pytest.raises(ConfigError, match=rf"{folder} was taken over by {next_one} on there"):
            claim(uri, folder, "elsewhere")


def test_data_that_was_replaced_is_refused(checkpoints: RemotePath) -> None:
    filesystem, path = checkpoints.filesystem, f"{checkpoints.path}/a.parquet"
    pq.write_table(pa.table({"y": [0, 1]}), path, filesystem=filesystem)
    footer = read_footer(filesystem, DataFile(path, 1), None)
    group = RowGroup(path, 0, 0, 2, version=footer.version)
    content = content_of(filesystem, path, footer.metadata, footer.version)
    assert content_of(filesystem, path) == content
    with RowGroupReader(filesystem) as reader:
        assert reader.read(group, ["y"]).num_rows == 2
    pq.write_table(pa.table({"y": [1, 0]}), path, filesystem=filesystem)
    assert content_of(filesystem, path) != content
    with RowGroupReader(filesystem) as reader, pytest.raises(DataError, match="was changed, replaced or removed"):
        reader.read(group, ["y"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("/models/", "/nothing/"), "there is no such bucket: check its name"),
        ((":{port}&", ":1&"), "it cannot be reached"),
        (("s3://", "fax://"), "is not a location that pyarrow can open"),
        (("&region=", "&color=red&region="), "is not a location that pyarrow can open"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_sentence_without_secrets(
    store: ObjectStore, change: tuple[str, str], sentence: str
) -> None:
    old, new = (part.format(port=store.port) for part in change)
    uri = store.uri("x").replace("@models/", "@/models/").replace(old, new).replace("@/", "@")
    with pytest.raises(ConfigError) as refused:
        claim(uri, Path("/runs/a"), "here")
    text = str(refused.value)
    assert text.startswith(f"checkpoint.path={uri.partition('://')[0]}://")
    assert sentence in text
    assert len(text.splitlines()) == 1
    assert not any(part in text for part in (SECRET, "AKIDOFTEST", "region="))


def test_files_of_a_followed_folder_are_found_and_read(store: ObjectStore) -> None:
    uri = store.uri("clicks")
    filesystem, folder = fs.FileSystem.from_uri(uri)
    for number, name in enumerate(("0 a%20.parquet", "1.parquet")):
        pq.write_table(table_of(number), f"{folder}/{name}", filesystem=filesystem)
    keys = {"kind": "parquet", "path": uri, "labels": ["label"], "sparse": ["row"], "split": {"kind": "train"}}
    dataset = ParquetDataset.model_validate(keys | {"follow": True})
    first, second = planner_of(dataset).poll(None, 9).files
    assert (first.cursor, second.cursor) == ("0 a%20.parquet", "1.parquet")
    assert sum(scan_of(dataset, [first.path, second.path]).split_rows.train) == 200
    assert SECRET not in first.path
