import msgspec
import pytest

from persia_cli.commands.rollback import NEWEST, rollback
from persia_cli.errors import CheckpointError, FormatError, UserError
from persia_cli.publish.version import (
    CURRENT,
    FORMAT_VERSION,
    PINNED,
    VERSION,
    Version,
    chain_of,
    read_version,
    served_version,
    version_text,
    versions_of,
    write_served,
)
from persia_cli.serving.description import FileNote, note_of, require_files
from persia_cli.storage.checked_json import checked


def written(folder, version, parent=None):
    """A version whose folder has one file."""
    facts = Version(FORMAT_VERSION, version, parent, "run", "1", 10 * version, 100, 1.5, [])
    place = folder / facts.folder
    place.mkdir(parents=True)
    (place / "data").write_bytes(b"content")
    facts = msgspec.structs.replace(facts, files=[note_of(place, "data")])
    (place / VERSION).write_bytes(version_text(facts))
    return facts


def test_a_version_is_read_as_written_and_its_chain_begins_with_its_base(tmp_path):
    all_ = [written(tmp_path, 3), written(tmp_path, 4, 3), written(tmp_path, 5, 4), written(tmp_path, 6)]
    (tmp_path / "delta-00000007.partial").mkdir()
    (tmp_path / "delta-00000007").mkdir()
    assert list(versions_of(tmp_path)) == [3, 4, 5, 6]
    assert chain_of(tmp_path, 5) == all_[:3]
    assert chain_of(tmp_path, 6) == [all_[3]]
    require_files(tmp_path / all_[1].folder, all_[1].files, contents=True)
    write_served(tmp_path, 5)
    assert served_version(tmp_path) == 5
    write_served(tmp_path, 4, PINNED)
    write_served(tmp_path, 6)
    assert served_version(tmp_path) == 4


def test_a_rollback_needs_a_whole_chain_and_the_newest_version_can_always_be_followed(tmp_path):
    for version, parent in ((3, None), (5, 4), (6, 3)):
        written(tmp_path, version, parent)
    write_served(tmp_path, 6)
    with pytest.raises(CheckpointError, match="needs version 4"):
        rollback(str(tmp_path), "5")
    assert served_version(tmp_path) == 6
    rollback(str(tmp_path), "3")
    assert served_version(tmp_path) == 3
    (tmp_path / PINNED).write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        served_version(tmp_path)
    rollback(str(tmp_path), NEWEST)
    assert served_version(tmp_path) == 6


def test_damage_is_refused(tmp_path):
    delta = written(tmp_path, 4, 3)
    place = tmp_path / delta.folder
    with pytest.raises(CheckpointError, match="needs version 3"):
        chain_of(tmp_path, 4)
    with pytest.raises(UserError, match="no version 9"):
        chain_of(tmp_path, 9)
    with pytest.raises(UserError, match="no published model"):
        served_version(tmp_path)
    text = (place / VERSION).read_bytes()
    (place / "data").write_bytes(b"Content")
    with pytest.raises(CheckpointError, match="not the file that was written"):
        require_files(place, delta.files, contents=True)
    (place / "data").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        require_files(place, delta.files, contents=True)
    (place / VERSION).write_bytes(text[:-9])
    with pytest.raises(CheckpointError, match="damaged"):
        read_version(place)
    (place / VERSION).write_bytes(text)
    place.rename(tmp_path / "delta-00000005")
    with pytest.raises(CheckpointError, match="describes delta-00000004"):
        read_version(tmp_path / "delta-00000005")
    (tmp_path / CURRENT).write_bytes(checked({"format_version": 3, "version": 4}))
    with pytest.raises(FormatError, match="format version 3"):
        served_version(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"parent": 4}, {"files": [FileNote("../x", 1, "0" * 64)]}]
)  # fmt: skip
def test_a_version_that_cannot_be_right_is_refused(tmp_path, changes):
    written(tmp_path, 3)
    written(tmp_path, 4, 3)
    path = tmp_path / "delta-00000004" / VERSION
    path.write_bytes(version_text(msgspec.structs.replace(read_version(path.parent), **changes)))
    with pytest.raises(CheckpointError, match=r"damaged|missing"):
        chain_of(tmp_path, 4)
