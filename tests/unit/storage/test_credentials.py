"""Credentials are removed from a URI before it is written anywhere, and put back where it is opened."""

import pytest

from persia_cli.storage.credentials import VARIABLE, opened, printable, without_credentials
from persia_cli.storage.remote import without_secret
from tests.support.runs import make_run


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
