"""The folders of rows on disks: each run has its own, and its next start clears what the last one left."""

from pathlib import Path

from persia_cli.store.cold.folders import clear, leave, run_folder, server_folder


def left(run: Path, *servers: int) -> list[Path]:
    """Make files of servers."""
    files = [server_folder(run, server) / "group-0" / "segment-3" for server in servers]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"rows")
    return files


def test_runs_of_one_name_have_separate_folders(tmp_path: Path) -> None:
    one, two = (run_folder(str(tmp_path), tmp_path / user / "runs" / "a") for user in ("x", "y"))
    assert one.parent == two.parent == tmp_path
    assert one != two
    assert run_folder(str(tmp_path), tmp_path / "x" / "runs" / "a") == one


def test_a_start_clears_its_own_files_and_those_of_servers_that_it_has_no_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    own, others, gone = left(run, 1, 0, 12)
    clear(run, 1, 2)
    assert [file.exists() for file in (own, others, gone)] == [False, True, False]
    clear(tmp_path / "never", 0, 1)


def test_a_server_leaves_no_empty_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    [file] = left(run, 0)
    server_folder(run, 1).mkdir()
    leave(run, 0)
    assert file.exists()
    file.unlink()
    file.parent.rmdir()
    leave(run, 0)
    assert list(run.iterdir()) == [server_folder(run, 1)]
    leave(run, 1)
    assert list(tmp_path.iterdir()) == []
