"""`persia recipe` lists the recipes and prepares data, counting the rows it leaves out."""

from pathlib import Path

ROW = "\t".join(["1", *(str(n) for n in range(13)), *(f"{n:08x}" for n in range(26))])


def test_recipes_are_listed(persia) -> None:
    ended = persia("recipe", "ls")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[0] for line in ended.out.splitlines()] == [
        "adult_income", "avazu", "criteo", "movielens", "my_data", "taobao",
    ]
    assert all("README.md" in line for line in ended.out.splitlines())


def test_data_is_prepared(persia) -> None:
    Path("train.txt").write_text(f"{ROW}\n" * 5)
    ended = persia("recipe", "prepare", "criteo", "--input", "train.txt", "--output", "made")
    assert ended.code == 0, ended.err
    files = [Path(line) for line in ended.out.splitlines()]
    assert files
    assert all(file.parent == Path("made") and file.is_file() for file in files)
    assert ended.err.startswith("wrote     5 rows, ")


def test_bad_rows_are_told_and_limited(persia) -> None:
    Path("train.txt").write_text(f"{ROW}\nwombat\n{ROW}\n")
    words = ("recipe", "prepare", "criteo", "--input", "train.txt", "--output", "made")
    refused = persia(*words)
    assert refused.code == 2
    assert refused.err.startswith("error: 1 row does not parse")
    assert "train.txt line 2" in refused.err
    assert not Path("made").exists()
    allowed = persia(*words, "--max-bad-rows", "1")
    assert allowed.code == 0
    assert allowed.err.startswith("left out: train.txt, line 2: ")
    assert "left out  1 row in all\nwrote     2 rows, " in allowed.err
