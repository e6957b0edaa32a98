"""`persia doctor` states facts about this machine, with what to do, and leaves nothing behind."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persia_cli.doctor import libraries, machine
from persia_cli.doctor.finding import Finding

NAMES = "disk cores caches numa memory bandwidth huge_pages shared_memory files versions torch"


@contextmanager
def distribution(folder: Path, name: str, version: str) -> Iterator[None]:
    """Make a library of this version known before the one that is installed."""
    found = folder / f"{name}-{version}.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.mark.processes
def test_a_folder_that_cannot_be_written_prevents_training(persia) -> None:
    ended = persia("doctor", "/proc/runs", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["trains"]) == (1, False)
    findings = found["findings"]
    assert list(findings) == [name.replace("_", " ") for name in NAMES.split()]
    assert [name for name, each in findings.items() if each["level"] == "error"] == ["disk"]
    assert "--run-dir" in findings["disk"]["advice"]
    assert findings["torch"]["torch"] == findings["versions"]["libraries"]["torch"]
    assert findings["cores"]["cores"] == len(os.sched_getaffinity(0))
    memory = findings["memory"]
    assert 0 < max(memory["free"], memory["allowed"]) <= memory["machine"]
    assert findings["bandwidth"]["one_thread"] > 1e8


def test_the_disk_is_measured_without_leaving_a_file(tmp_path: Path) -> None:
    found = machine.disk(tmp_path / "runs" / "later")
    assert found.values["folder"] == str(tmp_path)
    assert min(found.values["write"], found.values["read"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_every_advice_says_what_to_do() -> None:
    for check in (machine.cores, machine.huge_pages, machine.shared_memory, machine.files):
        found = check()
        assert (found.level == "ok") is (found.advice == "")
    assert Finding("a", advice="c").level == "advice"
    assert Finding("a", advice="c", prevents=True).level == "error"


def test_an_untested_version_of_a_library_is_named(tmp_path: Path) -> None:
    assert libraries.versions().level == "ok"
    with distribution(tmp_path, "numba", "0.1"):
        found = libraries.versions()
    assert (found.level, found.values["untested"]) == ("advice", ["numba"])
    assert "pip install 'numba" in found.advice


@pytest.mark.processes
def test_a_torch_that_does_not_start_prevents_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = libraries.torch()
    assert found.prevents
    assert "libcudart.so is missing" in found.advice
