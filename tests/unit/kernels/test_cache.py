"""Compiled kernels on disk: each compiled once for all processes; damaged and foreign ones are not used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.kernels.toolchain import cache

PROGRAM = """
import json, resource, sys
from persia_cli.kernels.rows import cast
from persia_cli.kernels.toolchain.cache import kernel_files
import numpy as np
if "no space" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
kernel, out = cast.to_bfloat16, np.empty(4, np.uint8)
assert kernel.compile()
kernel(np.float32([1.0, 2.0]), out)
stats = kernel._dispatcher.stats
print(json.dumps({"compiled": sum(stats.cache_misses.values()), "loaded": sum(stats.cache_hits.values()),
                  "out": out.view(np.uint16).tolist(), "file": str(kernel_files(kernel.name)[1])}))
"""
TWO = [0x3F80, 0x4000]
"""1 and 2 as bfloat16."""


def start(folder, *words, **environment):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)} | environment
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def told(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    said = json.loads(out)
    assert said["out"] == TWO
    return said


def use(folder, *words, **environment):
    return told(start(folder, *words, **environment))


def test_processes_that_start_together_compile_a_kernel_once(tmp_path):
    together = [told(process) for process in [start(tmp_path) for _ in range(2)]]
    assert sorted(each["compiled"] for each in together) == [0, 1]
    assert sorted(each["loaded"] for each in together) == [0, 1]


@pytest.mark.parametrize("cut", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a byte", "cut"])
def test_a_damaged_kernel_is_compiled_again(tmp_path, cut):
    kept = Path(use(tmp_path)["file"])
    whole = kept.read_bytes()
    middle = len(whole) // 2
    kept.write_bytes(whole[:middle] + (b"" if cut else bytes([whole[middle] ^ 1]) + whole[middle + 1 :]))
    assert use(tmp_path)["compiled"] == 1
    assert use(tmp_path)["loaded"] == 1


def test_where_nothing_can_be_written_each_process_compiles_for_itself(tmp_path):
    (tmp_path / "file").touch()
    assert use(tmp_path / "file" / "cache")["compiled"] == 1


@pytest.mark.slow
def test_a_full_disk_leaves_no_part_of_a_kernel(tmp_path):
    kept = Path(use(tmp_path, "no space")["file"])
    assert [path.name for path in kept.parent.iterdir()] == ["cast.to_bfloat16.lock"]
    assert use(tmp_path)["compiled"] == 1


def test_a_need_is_ready_only_if_its_kernels_are_on_disk(tmp_path):
    program = """
import resource, sys
from persia_cli.kernels.toolchain.cache import is_ready
from persia_cli.kernels.toolchain.needs import POOLING
from persia_cli.kernels.toolchain.warm import warm
if "no space" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
warm([POOLING])
print(is_ready(POOLING))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for word, ready in (("no space", "False"), ("space", "True")):
        command = [sys.executable, "-c", program, word]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
        assert done.stdout.strip() == ready


def test_other_sources_versions_and_processors_have_other_folders(tmp_path, monkeypatch):
    def folder():
        cache.cache_folder.cache_clear()
        return cache.cache_folder()

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    try:
        before = folder()
        assert folder() == before
        with monkeypatch.context() as changed:
            changed.setattr(cache, "version", lambda package: f"{package} 0")
            assert folder() != before
        with monkeypatch.context() as changed:
            changed.setattr(cache, "_processor", lambda: ["flags\t: fpu"])
            assert folder() != before
        sources = tmp_path / "sources"
        sources.mkdir()
        (sources / "a.py").write_text("A = 1")
        with monkeypatch.context() as changed:
            changed.setattr(cache, "__file__", str(sources / "cache.py"))
            assert folder() != before
        assert any(line.startswith(("flags", "Features")) for line in cache._processor())
    finally:
        cache.cache_folder.cache_clear()


def test_folders_used_long_ago_are_removed(tmp_path):
    for age in range(20):
        (tmp_path / f"kernels-{age:016}").mkdir()
        os.utime(tmp_path / f"kernels-{age:016}", (1000 - age, 1000 - age))
    (tmp_path / "other").mkdir()
    own = Path(use(tmp_path)["file"]).parent
    left = [f"kernels-{age:016}" for age in range(cache.MAX_FOLDERS - 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*left, own.name, "other"])
