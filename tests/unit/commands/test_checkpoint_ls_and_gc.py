"""`persia checkpoint ls` and `verify` report checkpoints; `gc` removes unused ones and never leaves half of one."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from persia_cli.observe.journal import EVENTS
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, MANIFEST, write_checked
from persia_cli.store.checkpoints.retention import BEST, BestPointer
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

ROWS = {3: 50, 6: 60, 9: 70, 12: 80, 20: 90}
STEPS = tuple(ROWS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with five checkpoints, of which that of step 6 is the best, and one that was not finished."""
    for step, rows in ROWS.items():
        write_run(tmp_path / f"run-{step}", make_run(), step, [made_up_rows(rows, 8, step, ("a", "b"))])
    run = tmp_path / "run-20"
    for step in STEPS[:-1]:
        shutil.move(tmp_path / f"run-{step}" / CHECKPOINTS / f"step-{step}", run / CHECKPOINTS)
    write_checked(run / CHECKPOINTS / BEST, BestPointer(6, "auc", 0.7))
    (run / CHECKPOINTS / "step-30.partial").mkdir()
    (run / CHECKPOINTS / "step-30.partial" / "half").write_bytes(bytes(500))
    return run


def there(run: Path) -> list[str]:
    return sorted(path.name for path in (run / CHECKPOINTS).iterdir() if path.name != BEST)


def folders(*steps: int) -> list[str]:
    return sorted(f"step-{step}" for step in steps)


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
        assert each["damage"] == ""
    assert [each["step"] for each in found if each["best"]] == [6]
    assert [each["step"] for each in found if each["resumes"]] == [20]


def test_leftovers_and_whether_they_are_being_written(persia, run: Path) -> None:
    folder = run / CHECKPOINTS
    (folder / "step-1.removed").mkdir()
    (folder / "step-40").mkdir()  # has no manifest, so it is no checkpoint; no save leaves one
    assert {Path(left["path"]).name: (left["state"], left["nbytes"]) for left in listed(persia, run)["leftovers"]} == {
        "step-30.partial": ("unfinished", 500),
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
    assert not any(each["resumes"] for each in listed(persia, run)["checkpoints"])
    ended = persia("checkpoint", "ls", str(run))
    assert f"leftover  {lost}, " in ended.err
    assert ended.err.splitlines()[-1].endswith(f"persia checkpoint verify {run}")
    flaw = f"{lost} has no {MANIFEST}: it is damaged, or was copied in part"
    assert flaw in persia("checkpoint", "verify", str(run)).err
    refused = persia("resume", str(run))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"has no {MANIFEST}; remove it to use {lost.with_name('step-12')}" in refused.err
    assert persia("checkpoint", "gc", str(run), "--keep", "9", "--yes").code == 0
    assert not lost.exists()
    assert [each["step"] for each in listed(persia, run)["checkpoints"] if each["resumes"]] == [12]


def test_damage_is_shown_and_the_others_are_listed(persia, run: Path) -> None:
    path = run / CHECKPOINTS / "step-9" / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"step": 9', b'"step": 8', 1))
    found = {each["step"]: each for each in listed(persia, run)["checkpoints"]}
    assert f"{path} is damaged" in found[9]["damage"]
    assert (found[9]["rows"], found[9]["best"]) == (None, False)
    assert found[20]["rows"] == ROWS[20]
    ended = persia("checkpoint", "ls", str(run))
    assert (ended.code, ended.err.count(str(path))) == (0, 1)


def test_what_is_no_run(persia, run: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "conf", tmp_path / "nothing", run / CHECKPOINTS / "step-9"):
        ended = persia("checkpoint", "ls", str(folder))
        assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
        assert str(folder) in ended.err


def test_nothing_is_removed_with_dry_run_or_without_a_terminal(persia, run: Path) -> None:
    before = there(run)
    ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--dry-run")
    assert (ended.code, there(run)) == (0, before)
    gone = [line for line in ended.out.splitlines() if line.startswith("goes ")]
    assert [Path(line.split()[1].rstrip(",")).name for line in gone] == [
        "step-30.partial",
        "step-3",
        "step-9",
        "step-12",
    ]
    ended = persia("checkpoint", "gc", str(run), "--keep", "1")
    assert (ended.code, there(run)) == (2, before)
    assert "--yes" in ended.err


@pytest.mark.parametrize(("keep", "stay"), [(1, (6, 20)), (2, (6, 12, 20)), (4, (6, 9, 12, 20)), (9, STEPS)])
def test_the_best_and_the_newest_stay(persia, run: Path, keep: int, stay: tuple[int, ...]) -> None:
    (run / CHECKPOINTS / "step-3.removed" / "half").mkdir(parents=True)  # it was saved again after half a removal
    ended = persia("checkpoint", "gc", str(run), "--keep", str(keep), "--yes")
    assert (ended.code, there(run)) == (0, folders(*stay)), ended.err
    assert json.loads(persia("checkpoint", "ls", str(run), "--json").out)["leftovers"] == []


def test_nothing_goes_while_the_best_is_not_known(persia, run: Path) -> None:
    (run / CHECKPOINTS / BEST).write_text("{}")
    before = there(run)
    assert (persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code, there(run)) == (2, before)


@pytest.mark.parametrize("journal", [EVENTS, f"predictions/now/{EVENTS}"])
def test_nothing_goes_while_a_job_uses_the_run(persia, run: Path, journal: str) -> None:
    before = there(run)
    (run / journal).parent.mkdir(parents=True, exist_ok=True)
    with (run / journal).open("w") as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert (ended.code, there(run)) == (2, before)
    assert persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code == 0


def test_a_removal_that_ends_half_way_leaves_nothing_that_looks_complete(
    persia, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.rmtree

    def dies(path: Path) -> None:
        if path.name.startswith("step-9"):
            raise OSError(5, "Input/output error")
        whole(path)

    monkeypatch.setattr(shutil, "rmtree", dies)
    ended = persia("checkpoint", "gc", str(run), "--keep", "1", "--yes")
    assert ended.code == 1
    assert "step-9" in ended.err
    found = json.loads(persia("checkpoint", "ls", str(run), "--json").out)
    assert [each["step"] for each in found["checkpoints"]] == [6, 12, 20]
    assert {Path(left["path"]).name for left in found["leftovers"]} == {"step-9.removed"}
    monkeypatch.undo()
    assert persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code == 0
    assert there(run) == folders(6, 20)


def test_without_keep_that_of_the_run_holds(persia, run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("keep: 3", "keep: 2"))
    assert persia("checkpoint", "gc", str(run), "--yes").code == 0
    assert there(run) == folders(6, 12, 20)


def test_one_that_is_whole_stays_if_the_newest_is_damaged(persia, run: Path) -> None:
    (run / CHECKPOINTS / "step-20" / MANIFEST).write_text("{}")
    assert persia("checkpoint", "gc", str(run), "--keep", "1", "--yes").code == 0
    assert there(run) == folders(6, 12, 20)


def test_each_flaw_is_a_line_and_the_exit_code_is_an_error(persia, tmp_path: Path) -> None:
    """The checkpoint has rows but no dense weights."""
    run = tmp_path / "run"
    write_run(run, make_run(), 9, [made_up_rows(50, 8, 9, ("a", "b"))])
    ended = persia("checkpoint", "verify", str(run))
    flaws = [line for line in ended.err.splitlines() if line.startswith("flaw")]
    assert ended.code == 2
    assert any("dense.safetensors is not in the checkpoint" in flaw for flaw in flaws)
    assert ended.out.startswith(f"{len(flaws)} flaws   {run / CHECKPOINTS / 'step-9'}, 50 rows, ")
    found = json.loads(persia("checkpoint", "verify", str(run / CHECKPOINTS / "step-9"), "--json").out)
    assert found["sound"] is False
    assert len(found["checkpoints"][0]["flaws"]) == len(flaws)
    for folder in (tmp_path / "conf", run / CHECKPOINTS):
        ended = persia("checkpoint", "verify", str(folder))
        assert (ended.code, ended.out) == (2, "")
