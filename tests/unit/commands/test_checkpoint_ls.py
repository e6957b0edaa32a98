"""`persia checkpoint ls` tells what a run has of checkpoints."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from persia_cli.observe.journal import EVENTS
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, MANIFEST, write_checked
from persia_cli.store.checkpoints.retention import BEST, BestNote
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

ROWS = {3: 50, 9: 70, 20: 90}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints; that of step 9 is the best."""
    for step, rows in ROWS.items():
        write_run(tmp_path / f"run-{step}", make_run(), step, [made_up_rows(rows, 8, step, ("a", "b"))])
    for step in (3, 9):
        shutil.move(tmp_path / f"run-{step}" / CHECKPOINTS / f"step-{step}", tmp_path / "run-20" / CHECKPOINTS)
    write_checked(tmp_path / "run-20" / CHECKPOINTS / BEST, BestNote(9, "auc", 0.7))
    return tmp_path / "run-20"


def listed(persia, run: Path) -> dict:
    ended = persia("checkpoint", "ls", str(run), "--json")
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


def test_every_checkpoint_with_its_metrics(persia, run: Path) -> None:
    found = listed(persia, run)["checkpoints"]
    assert [(each["step"], each["rows"], each["samples"]) for each in found] == [
        (step, rows, step * 32) for step, rows in ROWS.items()
    ]
    for each in found:
        files = [path for path in Path(each["path"]).rglob("*") if path.is_file()]
        assert each["nbytes"] == sum(path.stat().st_size for path in files)
        assert each["saved_s"] == (Path(each["path"]) / MANIFEST).stat().st_mtime
        assert (each["kind"], each["damage"]) == ("full", "")
    assert [each["best"] for each in found] == [False, True, False]
    assert [each["resumes"] for each in found] == [False, False, True]


def test_lines_for_programs_and_the_next_command_for_people(persia, run: Path) -> None:
    ended = persia("checkpoint", "ls", str(run))
    assert [line.split()[0] for line in ended.out.splitlines()] == ["step=3", "step=9", "step=20"]
    assert "best=true" in ended.out.splitlines()[1]
    assert ended.err.splitlines()[-1].split(maxsplit=1)[0] == "next"


def test_leftovers_and_whether_they_are_being_written(persia, run: Path) -> None:
    folder = run / CHECKPOINTS
    (folder / "step-30.partial").mkdir()
    (folder / "step-30.partial" / "half").write_bytes(b"12345")
    (folder / "step-1.removed").mkdir()
    (folder / "step-40").mkdir()  # has no manifest, so it is no checkpoint; no save leaves one
    assert {Path(left["path"]).name: (left["state"], left["nbytes"]) for left in listed(persia, run)["leftovers"]} == {
        "step-30.partial": ("unfinished", 5),
        "step-1.removed": ("partly removed", 0),
        "step-40": ("without its manifest", 0),
    }
    with (run / EVENTS).open("w") as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        states = [left["state"] for left in listed(persia, run)["leftovers"]]
    assert sorted(states) == ["being written", "partly removed", "without its manifest"]


def test_a_folder_that_has_lost_its_manifest_is_reported(persia, run: Path) -> None:
    lost = run / CHECKPOINTS / "step-20"
    (lost / MANIFEST).unlink()
    assert [each["resumes"] for each in listed(persia, run)["checkpoints"]] == [False, False]
    ended = persia("checkpoint", "ls", str(run))
    assert f"leftover={lost} state=" in ended.out
    assert ended.err.splitlines()[-1].endswith(f"persia checkpoint verify {run}")
    flaw = f"{lost} has no {MANIFEST}: it is damaged, or was copied in part"
    assert flaw in persia("checkpoint", "verify", str(run)).err
    refused = persia("resume", str(run))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"has no {MANIFEST}; remove it to use {lost.with_name('step-9')}" in refused.err
    assert persia("checkpoint", "gc", str(run), "--keep", "9", "--yes").code == 0
    assert not lost.exists()
    assert [each["resumes"] for each in listed(persia, run)["checkpoints"]] == [False, True]


def test_damage_is_shown_and_the_others_are_listed(persia, run: Path) -> None:
    path = run / CHECKPOINTS / "step-9" / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"step": 9', b'"step": 8', 1))
    found = {each["step"]: each for each in listed(persia, run)["checkpoints"]}
    assert f"{path} is damaged" in found[9]["damage"]
    assert (found[9]["rows"], found[9]["best"]) == (None, True)
    assert found[20]["rows"] == ROWS[20]
    ended = persia("checkpoint", "ls", str(run))
    assert (ended.code, ended.err.count(str(path))) == (0, 1)
    assert ended.err.splitlines()[-1].endswith(f"persia checkpoint verify {run}")


def test_a_note_of_the_best_that_is_wrong(persia, run: Path) -> None:
    shutil.rmtree(run / CHECKPOINTS / "step-9")
    assert "step-9, which is not there" in listed(persia, run)["note"]
    (run / CHECKPOINTS / BEST).write_text("{}")
    assert BEST in listed(persia, run)["note"]


def test_what_is_no_run(persia, run: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "conf", tmp_path / "nothing", run / CHECKPOINTS / "step-9"):
        ended = persia("checkpoint", "ls", str(folder))
        assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
        assert str(folder) in ended.err
    shutil.rmtree(run / CHECKPOINTS)
    ended = persia("checkpoint", "ls", str(run))
    assert (ended.code, ended.out) == (0, "")
    assert "no complete checkpoint" in ended.err
