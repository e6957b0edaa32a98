"""A manifest with any damage is refused, or describes the very same model."""

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
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


def test_every_changed_bit_is_noticed(checkpoint: Path, text: bytes) -> None:
    path = checkpoint / MANIFEST
    try:
        for place in range(len(text)):
            damaged = bytearray(text)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError, match="step-9"):
                read_manifest(checkpoint)
    finally:
        path.write_bytes(text)


@given(st.data())
def test_other_bytes_are_noticed(checkpoint: Path, text: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    put = data.draw(st.binary(max_size=20) | st.just(text[start : stop + 10]))
    damaged = text[:start] + put + text[stop:]
    assume(damaged != text)
    path = checkpoint / MANIFEST
    path.write_bytes(damaged)
    try:
        with pytest.raises(CheckpointError, match="step-9"):
            read_manifest(checkpoint)
    finally:
        path.write_bytes(text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: m["files"].pop(0), id="a file left out"),
        pytest.param(lambda m: m["files"].clear(), id="all files left out"),
        pytest.param(lambda m: m["files"].append(m["files"][0]), id="a file twice"),
        pytest.param(lambda m: m["files"][0].update(folder="embeddingr"), id="another folder"),
        pytest.param(lambda m: m["files"][0].update(folder=".."), id="a folder outside"),
        pytest.param(lambda m: m["files"][0]["rows"].update(stop=0), id="a gap between partitions"),
        pytest.param(lambda m: m["files"][1]["rows"]["tables"].update(b=29), id="fewer rows in a file"),
        pytest.param(lambda m: m["files"][0]["rows"].update(group=7), id="an unknown group"),
        pytest.param(lambda m: m["tables"].pop(0), id="a table left out"),
        pytest.param(lambda m: m["tables"][1].update(rows=1), id="fewer rows in a table"),
        pytest.param(lambda m: m["groups"].update({"0": 69}), id="fewer rows in a group"),
        pytest.param(lambda m: m.update(step="9"), id="text for a number"),
        pytest.param(lambda m: m["files"][0].update(nbytes=3.5), id="a fraction for a whole number"),
        pytest.param(lambda m: m["files"][0].update(color="red"), id="an unknown key"),
        pytest.param(lambda m: m.update(step=900), id="the step of another folder"),
    ],
)
def test_inconsistent_manifests_with_valid_checksums_are_refused(
    checkpoint: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    fields = msgspec.to_builtins(read_manifest(checkpoint))
    before = deepcopy(fields)
    change(fields)
    assert fields != before
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


def test_a_manifest_without_checksum_is_damaged(checkpoint: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    (copied / MANIFEST).write_text(f'{{"format_version": {FORMAT_VERSION}, "step": 9}}')
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: it does not begin with its own checksum"):
        read_manifest(copied)


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_is_refused_even_with_the_same_keys(checkpoint: Path, tmp_path: Path, version: int) -> None:
    copied = Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))
    write_checked(copied / MANIFEST, msgspec.structs.replace(read_manifest(checkpoint), format_version=version))
    with pytest.raises(CheckpointError, match=f"has checkpoint format {version}; this persia reads format"):
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
