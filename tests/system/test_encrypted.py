"""A job whose connections are encrypted computes the same as any other, and keeps its secret."""

from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import ROLES, JobResult
from persia_cli.engines.key_files import KEY_FILE
from persia_cli.engines.local import LocalEngine
from persia_cli.wire.secret import new_keys, read_keys, write_keys
from tests.support.jobs import plan
from tests.support.secrecy import leaks_in_files, leaks_in_processes
from tests.support.small import WORDS, figures

pytestmark = pytest.mark.slow


def test_an_encrypted_job_has_the_same_bits_and_hides_its_secret(
    tmp_path: Path, undisturbed: JobResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, run_dir = new_keys(), tmp_path / "run"
    write_keys(tmp_path / "keys", keys)
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "keys"))
    words = ["cluster=local", "cluster.transport=tcp", "cluster.encryption=curve"]
    leaks: list[str] = []
    seen: set[int] = set()

    def look() -> None:
        roles = psutil.Process().children(recursive=True)
        seen.update(role.pid for role in roles)
        leaks.extend(leaks_in_processes(keys, roles))

    result = LocalEngine().launch(plan([*WORDS, *words], run_dir), look)
    assert figures(result) == figures(undisturbed)
    assert len(seen) >= 5
    assert not leaks
    assert leaks_in_files(keys, [tmp_path]) == [tmp_path / "keys"]
    for log in (run_dir / ROLES).iterdir():
        assert f"are encrypted with the keys {keys.fingerprint}" in log.read_text(), log.name
    assert read_keys(tmp_path / "keys") == keys
