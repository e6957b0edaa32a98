"""Sources of a replica's keys, and the errors if it has none, or too many."""

from pathlib import Path

import pytest
import typer.testing

from persia_cli.config.schema import LocalCluster
from persia_cli.engines.key_files import KEY_FILE, key_file_of, key_file_of_coordinator
from persia_cli.engines.role_options import RoleOptions
from persia_cli.errors import PersiaError, UserError
from persia_cli.main import app
from persia_cli.wire.secret import new_keys, new_token, read_keys, write_keys, write_token

BEYOND, HERE = "tcp://10.1.2.3:7000", "tcp://127.0.0.1:7000"
ENV = Path("/from/environment")


def cluster(**settings: object) -> LocalCluster:
    return LocalCluster.model_validate({"kind": "local", "transport": "tcp"} | settings)


@pytest.fixture
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_FILE, str(ENV))


@pytest.fixture(autouse=True)
def _not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_FILE, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys", new_keys())
    return tmp_path / "keys"


def test_of_several_files_the_nearest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_file_of(None, None) is None
    monkeypatch.setenv(KEY_FILE, str(ENV))
    assert key_file_of(None, None) == ENV
    assert key_file_of(Path("/given"), None) == Path("/given")
    assert key_file_of(None, Path("/token")) is None
    with pytest.raises(UserError, match="a job has keys or a token; give one of them"):
        key_file_of(Path("/given"), Path("/token"))


@pytest.mark.parametrize(
    ("settings", "address", "said"),
    [
        ({}, BEYOND, f"{BEYOND} can be reached from other machines, so its connections have to be encrypted: make a"),
        ({"encryption": "curve"}, BEYOND, "give it to every role of the job, on every machine: --key-file FILE"),
        ({"encryption": "curve"}, HERE, "cluster.encryption=curve needs keys: make a file of keys with `persia keys"),
    ],
)
def test_a_coordinator_without_keys_that_needs_some_is_refused(
    settings: dict[str, object], address: str, said: str
) -> None:
    with pytest.raises(PersiaError) as refused:
        key_file_of_coordinator(None, None, cluster(**settings), address)
    assert said in str(refused.value)
    assert refused.value.exit_code == UserError.exit_code


def test_a_token_is_not_enough_beyond_this_machine() -> None:
    with pytest.raises(PersiaError, match="can be reached from other machines"):
        key_file_of_coordinator(None, Path("token"), cluster(), BEYOND)
    assert key_file_of_coordinator(None, Path("token"), cluster(), HERE) is None


@pytest.mark.usefixtures("_named")
def test_encryption_none_leaves_keys_alone() -> None:
    assert key_file_of_coordinator(None, None, cluster(), HERE) == ENV
    assert key_file_of_coordinator(None, None, cluster(encryption="none"), HERE) is None
    trusting = cluster(encryption="none")
    assert key_file_of_coordinator(None, None, trusting, BEYOND) is None
    with pytest.raises(UserError, match=r"--key-file is of no use with cluster.encryption=none"):
        key_file_of_coordinator(Path("keys"), None, trusting, BEYOND)


def test_nothing_to_encrypt_is_refused() -> None:
    with pytest.raises(ValueError, match="encrypts connections over TCP, and there are none"):
        cluster(encryption="curve", transport="ipc")


def test_roles_need_keys_or_trust_to_go_beyond_this_machine(file: Path, tmp_path: Path) -> None:
    write_token(tmp_path / "token", new_token())
    token = tmp_path / "token"
    with pytest.raises(PersiaError, match="so its connections have to be encrypted"):
        RoleOptions("data-loader", 0, BEYOND, token_file=token).check()
    with pytest.raises(UserError, match=r"needs --token-file, the file with the job's token.* or --key-file"):
        RoleOptions("data-loader", 0, HERE).check()
    RoleOptions("data-loader", 0, BEYOND, token_file=token, trusts_network=True).check()
    options = RoleOptions("data-loader", 0, BEYOND, key_file=file)
    options.check()
    with options.context() as context:
        assert context.secret.keys == read_keys(file)
    with pytest.raises(UserError, match=r"the coordinator knows by cluster.encryption=none"):
        RoleOptions("coordinator", 0, HERE, run_dir=tmp_path, trusts_network=True).check()
    file.chmod(0o644)
    with pytest.raises(UserError, match=f"other users can access the job's keys in {file}"):
        RoleOptions("data-loader", 0, BEYOND, key_file=file).check()
    with pytest.raises(UserError, match=f"cannot read the job's keys from {tmp_path}/none: No such file"):
        RoleOptions("data-loader", 0, HERE, key_file=tmp_path / "none").check()


def test_the_command_makes_a_file_once_and_prints_a_fingerprint_only(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    made = typer.testing.CliRunner().invoke(app, ["keys", "new", str(file)])
    assert made.exit_code == 0
    keys = read_keys(file)
    assert made.stdout == f"{keys.fingerprint}\n"
    assert keys.secret.decode() not in made.output
    assert keys.public.decode() not in made.output
    again = typer.testing.CliRunner().invoke(app, ["keys", "new", str(file)])
    assert isinstance(again.exception, UserError)
    assert "the file exists; name another" in str(again.exception)
    assert read_keys(file) == keys


def test_a_file_of_no_use_is_refused_before_there_is_a_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["cluster=hosts", "cluster.hosts=[nowhere.invalid]", "cluster.ssh=/bin/false"]
    file.chmod(0o644)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_FILE, str(file))
    for where in ([], ["--run-dir", "here"], ["--dry-run"]):
        ended = typer.testing.CliRunner().invoke(app, ["train", "conf=synthetic", *words, *where])
        assert isinstance(ended.exception, UserError), ended.output
        assert f"other users can access the job's keys in {file}" in str(ended.exception)
        assert not [path for path in tmp_path.rglob("*") if path != file and path.name != "runs"]
