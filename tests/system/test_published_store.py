"""Versions in an object store: a training sends them, a server fetches them, and a rollback there moves the server."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.errors import CheckpointError, PersiaError, UserError
from persia_cli.publish.version import CURRENT, LOCAL, VERSION, Mirror, fetch, folders_of, served_version, versions_of
from persia_cli.serving.following import Follower
from persia_cli.storage.locations import Location, location_of, put
from tests.conftest import poll_for
from tests.support.published import Publication
from tests.support.s3 import SECRET, ObjectStore, object_store
from tests.system.test_serve import PERSIA, Server, serving
from tests.system.test_serve_follow import SOON_S


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """Nothing is looked for: the library keeps connections to a store until the process ends."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def published(place: Path, deltas: int) -> Publication:
    publication = Publication(place)
    publication.publish_base()
    for _ in range(deltas):
        publication.publish_delta(publication.random_changes(20))
    publication.announce()
    return publication


def sent(folder: Path, store: Location) -> None:
    mirror = Mirror(folder, store)
    mirror.send()
    mirror.remove_old()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_versions_are_sent_and_fetched_whole_whatever_a_kill_has_left(store: ObjectStore, tmp_path: Path) -> None:
    publication, there = published(tmp_path, 2), location_of(store.uri("sent"))
    sent(publication.folder, there)
    (there / "delta-00000003" / VERSION).remove()
    (there / "delta-00000003" / "rows" / "0.parquet").remove()
    for _ in range(2):
        publication.publish_delta(publication.random_changes(20))
    publication.announce()
    sent(publication.folder, there)
    assert served_version(there) == 5
    fetch(there, tmp_path / "copy", 4)
    assert list(versions_of(tmp_path / "copy")) == [1, 2, 3, 4]
    fetch(there, tmp_path / "copy", 5)
    assert files(tmp_path / "copy") == {
        name: content for name, content in files(publication.folder).items() if name != CURRENT
    }
    publication.publish_base()
    publication.announce()
    mirror = Mirror(publication.folder, there)
    for number, folder in versions_of(publication.folder).items():
        if number < 6:
            shutil.rmtree(folder)
    mirror.send()
    mirror.remove_old()
    assert list(folders_of(there)) == [6]
    fetch(there, tmp_path / "copy", 6)
    assert list(versions_of(tmp_path / "copy")) == [6]
    with pytest.raises(UserError, match="no version 5; the newest are 6"):
        fetch(there, tmp_path / "copy", 5)
    with pytest.raises(UserError, match="choose another URI"):
        Mirror(tmp_path / "new", there)


@pytest.mark.parametrize("path", ["rows/0.parquet", VERSION])
def test_an_altered_object_is_refused_until_it_is_right_again(store: ObjectStore, tmp_path: Path, path: str) -> None:
    publication, there = published(tmp_path, 1), location_of(store.uri(f"altered-{path}"))
    sent(publication.folder, there)
    content = (there / "delta-00000002" / path).read_bytes()
    put(there / "delta-00000002" / path, content[:-3] + b"...")
    with pytest.raises(CheckpointError):
        fetch(there, tmp_path / "copy", 2)
    assert list(versions_of(tmp_path / "copy")) == []
    put(there / "delta-00000002" / path, content)
    fetch(there, tmp_path / "copy", 2)
    assert Follower(tmp_path / "copy", tmp_path / "work", None).prepare(2).version.version == 2


def test_a_store_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PersiaError, match=r"127\.0\.0\.1"):
        fetch(location_of("s3://key:secret@models/x?endpoint_override=127.0.0.1:9&scheme=http"), tmp_path, 1)


def version_of(server: Server) -> str | None:
    return json.loads(server.ask("GET", "/v2/models/trained").body)["versions"][0]


@pytest.mark.timeout(300)
def test_a_training_is_served_from_a_store_and_rolled_back_there(store: ObjectStore, tmp_path: Path) -> None:
    uri = store.uri("trained")
    words = [
        "conf=synthetic", "cluster=embedded", "model.hidden=[16,8]", "dataset.generator.cardinalities=[20,3000]",
        "dataset.generator.train_rows=19200", "dataset.generator.eval_rows=320", "train.batch_size=64",
        f"publish.to={uri}", "publish.every_s=0.2", "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    subprocess.run([PERSIA, "train", *words], check=True, capture_output=True, timeout=200)
    newest = served_version(location_of(uri))
    assert newest > 1
    assert list(folders_of(location_of(uri))) == list(versions_of(tmp_path / "run" / LOCAL))
    assert SECRET not in (tmp_path / "run" / "config.yaml").read_text()
    with serving(uri, tmp_path / "server", "--workers", "1") as server:
        for version, served in (("1", 1), ("newest", newest)):
            subprocess.run([PERSIA, "rollback", uri, version], check=True, capture_output=True, timeout=SOON_S)
            poll_for(lambda served=served: version_of(server) == str(served), SOON_S, f"version {served} is served")
