"""A manifest with any damage is refused, or describes the very same model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.errors import CheckpointError
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    EMBEDDINGS,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    begin_checkpoint,
    checkpoint_folder,
    publish,
    read_manifest,
    verify,
    write_checked,
)
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

FILES = [made_up_rows(40, 8, 9, ("a", "b"), 1), made_up_rows(30, 8, 9, ("b",), 2)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two files of rows."""
    return write_run(tmp_path_factory.mktemp("manifest") / "run", make_run(), 9, FILES)


@pytest.fixture(scope="module")
def text(checkpoint: Path) -> bytes:
    """The original manifest."""
    return (checkpoint / MANIFEST).read_bytes()


def assert_refused_or_the_same(checkpoint: Path, damaged: bytes, text: bytes) -> None:
    """Read the checkpoint with other bytes for its manifest."""
    whole = read_manifest(checkpoint)
    path = checkpoint / MANIFEST
    path.write_bytes(damaged)
    refusal = None
    try:
        assert read_manifest(checkpoint) == whole
    except CheckpointError as error:
        refusal = str(error)
    finally:
        path.write_bytes(text)
    assert (refusal is None) == (damaged == text)
    assert refusal is None or (str(checkpoint) in refusal and len(refusal.splitlines()) == 1)


def test_every_changed_bit_is_noticed(checkpoint: Path, text: bytes) -> None:
    path = checkpoint / MANIFEST
    try:
        for place in range(len(text)):
            for bit in (0, place % 8):
                damaged = bytearray(text)
                damaged[place] ^= 1 << bit
                path.write_bytes(damaged)
                with pytest.raises(CheckpointError, match="step-9"):
                    read_manifest(checkpoint)
    finally:
        path.write_bytes(text)


@given(st.data())
def test_other_bytes_are_noticed(checkpoint: Path, text: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 40)))
    put = data.draw(st.binary(max_size=20) | st.just(text[start : stop + 10]))
    assert_refused_or_the_same(checkpoint, text[:start] + put + text[stop:], text)


@given(st.data())
def test_lines_that_are_dropped_doubled_or_in_another_order_are_noticed(
    checkpoint: Path, text: bytes, data: st.DataObject
) -> None:
    lines = text.splitlines(keepends=True)
    one, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    swapped = [*lines]
    swapped[one], swapped[other] = lines[other], lines[one]
    for damaged in (lines[:one], lines[one:], [*lines[:one], *lines[one + 1 :]], [*lines[:one], *lines[one:]], swapped):
        assert_refused_or_the_same(checkpoint, b"".join(damaged), text)


def drop_file(manifest: dict) -> None:
    """Leave a file out."""
    del manifest["files"][0]


def drop_all(manifest: dict) -> None:
    """Leave all files out."""
    manifest["files"] = []


def double(manifest: dict) -> None:
    """List a file twice."""
    manifest["files"].append(manifest["files"][0])


def misname(manifest: dict) -> None:
    """Look for a file in another folder."""
    manifest["files"][0]["folder"] = "embeddingr"


def climb(manifest: dict) -> None:
    """Look for a file outside of the checkpoint."""
    manifest["files"][0]["folder"] = ".."


def shift(manifest: dict) -> None:
    """Leave a gap between the partitions of two files."""
    manifest["files"][0]["rows"]["stop"] = 0


def forget_rows(manifest: dict) -> None:
    """Set fewer rows for a file than for the table."""
    manifest["files"][1]["rows"]["tables"]["b"] -= 1


def forget_table(manifest: dict) -> None:
    """Leave a table out."""
    del manifest["tables"][0]


def forget_total(manifest: dict) -> None:
    """Set fewer rows for a table than for its files."""
    manifest["tables"][1]["rows"] -= 1


def forget_group_rows(manifest: dict) -> None:
    """Set fewer rows for a feature group than for its files."""
    manifest["groups"]["0"] -= 1


def other_group(manifest: dict) -> None:
    """Name a feature group that does not exist in a file."""
    manifest["files"][0]["rows"]["group"] = 7


def retype(manifest: dict) -> None:
    """Put text where a number belongs."""
    manifest["step"] = "9"


def retype_file(manifest: dict) -> None:
    """Put a fraction where a whole number belongs."""
    manifest["files"][0]["nbytes"] = 3.5


def add_key(manifest: dict) -> None:
    """Add an unknown key."""
    manifest["files"][0]["color"] = "red"


def rename_step(manifest: dict) -> None:
    """Set another step than that of the folder's name."""
    manifest["step"] = 900


@pytest.mark.parametrize(
    "change",
    [
        drop_file, drop_all, double, misname, climb, shift, forget_rows, forget_table, forget_total, forget_group_rows,
        other_group, retype, retype_file, add_key, rename_step,
    ],
)  # fmt: skip
def test_inconsistent_manifests_with_valid_checksums_are_refused(
    checkpoint: Path, tmp_path: Path, change: Callable[[dict], None]
) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    fields = msgspec.to_builtins(read_manifest(checkpoint))
    change(fields)
    write_checked(copied / MANIFEST, fields)
    with pytest.raises(CheckpointError, match="step-9") as refused:
        read_manifest(copied)
    assert len(str(refused.value).splitlines()) == 1


def test_a_checkpoint_may_be_copied_anywhere_under_another_name(checkpoint: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / "the good one"))
    assert read_manifest(copied) == read_manifest(checkpoint)
    renamed = copied.rename(tmp_path / "step-10")
    with pytest.raises(CheckpointError, match="step-10 contains the checkpoint of step 9"):
        read_manifest(renamed)


def test_a_file_that_is_not_listed_is_named(checkpoint: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    (copied / EMBEDDINGS / ".nfs0001").touch()
    read_manifest(copied)
    (copied / EMBEDDINGS / "more.arrow").touch()
    with pytest.raises(CheckpointError, match=r"more\.arrow is not listed in the checkpoint"):
        read_manifest(copied)


def test_a_file_of_another_size_or_content_is_named(checkpoint: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    file = read_manifest(copied).files[0]
    path = copied / file.folder / file.name
    content = path.read_bytes()
    told: list[int] = []
    verify(path, file, told.append)
    assert sum(told) == len(content)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"{file.name} has changed since it was saved \(its xxh128"):
        verify(path, file)
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"{file.name} has changed .*: it has {len(content) - 1:,} bytes, not"):
        read_manifest(copied)


def test_a_manifest_without_checksum_is_of_another_format_or_damaged(checkpoint: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    (copied / MANIFEST).write_text('{"format_version": 1, "step": 9}')
    with pytest.raises(CheckpointError, match="has checkpoint format 1; this persia reads format 10"):
        read_manifest(copied)
    (copied / MANIFEST).write_text(f'{{"format_version": {FORMAT_VERSION}, "step": 9}}')
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: it does not begin with its own checksum"):
        read_manifest(copied)


def test_no_checkpoint_is_published_that_is_not_a_whole_model(checkpoint: Path, tmp_path: Path) -> None:
    partial = begin_checkpoint(tmp_path / CHECKPOINTS, 9)
    shutil.copytree(checkpoint / EMBEDDINGS, partial / EMBEDDINGS)
    whole = read_manifest(checkpoint)
    lacking = msgspec.structs.replace(whole, files=whole.files[1:])
    with pytest.raises(CheckpointError, match=r"step-9\.partial is incomplete"):
        publish(tmp_path / CHECKPOINTS, partial, lacking)
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["step-9.partial"]
    publish(tmp_path / CHECKPOINTS, partial, whole)
    assert read_manifest(checkpoint_folder(tmp_path / CHECKPOINTS, 9)) == whole
    assert isinstance(whole, Manifest)
