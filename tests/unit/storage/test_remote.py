"""Stores that do not answer, refuse or do not exist: one sentence, soon, and without the credentials of the URI."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from persia_cli.data.read.files import DataFile
from persia_cli.data.read.row_groups import read_footer
from persia_cli.errors import DataError
from persia_cli.storage import remote
from persia_cli.storage.addresses import VARIABLE, opened, printable, without_credentials
from persia_cli.storage.remote import ask, is_waiting, within, without_secret
from tests.conftest import poll_for
from tests.support.runs import make_run

INSPECT = """
import sys
from persia_cli.storage import remote
remote.DEADLINE_S = 1.0
from persia_cli.main import main
main()
"""


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()[1]


def test_a_store_that_never_answers(silent: int) -> None:
    """In a separate process, since the thread that waits inside the library can only end with it."""
    place = f"s3://key:secret@bucket/x?endpoint_override=127.0.0.1:{silent}&scheme=http"
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", INSPECT, "data", "inspect", place], capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 2, ended.stderr
    first, last = ended.stderr.splitlines()
    assert first == "looking   at s3://***@bucket/x"
    assert last.startswith("error: s3://***@bucket/x has not answered within 1 s")
    assert time.monotonic() - began < 60


def test_a_store_that_falls_silent_at_a_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    names = {thread.name for thread in threading.enumerate()}

    class Silent:
        def open_input_file(self, path: str) -> None:
            answers.wait(60)
            raise OSError(path)

    monkeypatch.setattr(remote, "DEADLINE_S", 0.1)
    file = DataFile("bucket/day=1/a.parquet", 1000)
    try:
        with pytest.raises(DataError, match=r"s3://bucket/day=1/a.parquet has not answered within 0.1 s"):
            read_footer(Silent(), file, "s3://bucket?region=x")
    finally:
        answers.set()
        for thread in threading.enumerate():
            if thread.name not in names:
                thread.join(10)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("AWS Error ACCESS_DENIED during HeadBucket operation: No response body.", "you may not read it"),
        ("When getting information for bucket: AWS Error NO_SUCH_BUCKET", "there is no such bucket"),
        ("AWS Error NETWORK_CONNECTION: curlCode: 6, Could not resolve hostname", "it cannot be reached"),
        ("port 40404: Connection refused", "it cannot be reached"),
        ("Unable to load libjvm", "it cannot be read (Unable to load libjvm)"),
    ],
)
def test_errors_are_explained(text: str, cause: str) -> None:
    def fail() -> None:
        raise OSError(text)

    with pytest.raises(DataError) as caught:
        remote.ask("s3://b", fail)
    assert str(caught.value).startswith(f"s3://b: {cause}")
    assert text.removesuffix(".") in str(caught.value)


def test_calls_within_a_block_share_its_time_and_then_nothing_is_asked() -> None:
    asked: list[int] = []
    stop = threading.Event()

    def hang() -> None:
        asked.append(len(asked))
        stop.wait(60)

    try:
        with within(0.3):
            for _ in range(3):
                with pytest.raises(DataError, match=r"has not answered within 0\.3 s"):
                    ask("s3://bucket/x", hang)
            with within(60), pytest.raises(DataError, match="has not answered"):
                ask("s3://bucket/x", hang)
    finally:
        stop.set()
    assert asked == [0]
    assert ask("s3://bucket/x", lambda: 5) == 5
    poll_for(lambda: not is_waiting(), 30.0, "the end of the call")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "{}")


@pytest.mark.parametrize(
    ("uri", "public"),
    [
        ("s3://KEY:SECRET@b/x?region=r&scheme=http", "s3://b/x?region=r&scheme=http"),
        ("s3://KEY:SEC/RET@b/x", "s3://b/x"),
        ("s3://KEY:SEC?RET@b/x", "s3://b/x"),
        ("s3://KEY%3ASECRET@b", "s3://b"),
        ("s3://b/x?region=r&secret_key=SECRET", "s3://b/x?region=r"),
        ("s3://b/x?endpoint_override=KEY:SECRET@h:1", "s3://b/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("gs://anonymous@b/x?scheme=http", "gs://anonymous@b/x?scheme=http"),
        ("hdfs://node:8020/x@y", "hdfs://node:8020/x@y"),
        ("/data/x", "/data/x"),
    ],
)
def test_they_leave_and_come_back(uri: str, public: str) -> None:
    assert without_credentials(uri) == public
    assert without_credentials(public) == public
    if "override=KEY" not in uri:
        assert opened(public) == uri
    # Paths below the place, and another folder of the same store, are opened with them too.
    if "SECRET" in uri:
        assert "SECRET" in opened(public.replace("/x", "/x/step-9"))
    assert "SECRET" not in without_secret(uri)
    assert "SECRET" not in printable(f"checkpoint.path={uri}")


def test_a_configuration_never_has_them() -> None:
    run = make_run(checkpoint={"path": "s3://KEY:SECRET@b/x?region=r"})
    assert run.checkpoint.path == "s3://b/x?region=r"
    assert "SECRET" not in run.model_dump_json() + repr(run)


def test_a_text_shows_neither_passwords_nor_queries() -> None:
    text = "cannot write s3://k:p@ss@b/x?token=T, and 's3://k:p@c/y?z' (see http://h/?q=1)"
    assert without_secret("at s3://k:p@b/x?token=T, 'gs://c/y?z=1' too") == "at s3://***@b/x, 'gs://c/y' too"
    assert not any(part in without_secret(text) for part in ("p@ss", "token", "q=1"))
