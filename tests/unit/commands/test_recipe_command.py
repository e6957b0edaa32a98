"""`persia recipe`: what there is, what it says, copies of it, data prepared and trained on."""

from pathlib import Path

import pytest

from persia_cli.data.prepare.recipe import list_folders

ROW = "\t".join(["1", *(str(n) for n in range(13)), *(f"{n:08x}" for n in range(26))])


def test_recipes_are_listed(persia) -> None:
    ended = persia("recipe", "ls")
    assert (ended.code, ended.err) == (0, "next      persia recipe show NAME\n")
    assert [line.split()[0] for line in ended.out.splitlines()] == list(list_folders())


def test_a_recipe_is_shown(persia) -> None:
    ended = persia("recipe", "show", "adult_income")
    assert ended.code == 0
    assert ended.out.startswith("# Adult: ")
    assert ended.err == "next      persia recipe prepare adult_income --input PATH\n"
    assert persia("recipe", "show", "critoe").err == "error: no recipe critoe; did you mean criteo?\n"


def test_data_is_prepared(persia) -> None:
    Path("train.txt").write_text(f"0{ROW[1:]}\n" + f"{ROW}\n" * 4)
    ended = persia("recipe", "prepare", "criteo", "--input", "train.txt", "--output", "made")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == ["made/train-0000.parquet", "made/dataset.yaml"]
    wrote, following = ended.err.splitlines()
    assert wrote.startswith("wrote     5 rows, ")
    assert following == "next      persia train conf=criteo dataset=made/dataset.yaml"
    words = following.split()[3:]
    planned = persia("train", *words, "--dry-run")
    assert planned.code == 0, planned.err
    assert "4 training and 1 evaluation samples" in planned.out
    again = persia("recipe", "prepare", "criteo", "--input", "train.txt", "--output", "made")
    assert again.err.splitlines()[0] == "kept      1 file of an earlier run"


def test_bad_rows_are_reported_and_limited(persia) -> None:
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


def test_options_reach_the_data(persia) -> None:
    Path("train.txt").write_text(f"0{ROW[1:]}\n" + f"{ROW}\n" * 8 + ROW.replace("0000000a", "0000abcd") + "\n")
    words = ("recipe", "prepare", "criteo", "--input", "train.txt")
    ended = persia(*words, "--min-count", "2", "--split", "chronological:0.2", "--workers", "2")
    assert ended.out.splitlines() == ["data/criteo/train-0000.parquet", "data/criteo/dataset.yaml"]
    planned = persia("train", "conf=criteo", "dataset=data/criteo/dataset.yaml", "--dry-run")
    assert "8 training and 2 evaluation samples" in planned.out
    wrong = persia(*words, "--output", "x", "--split", "sorted")
    assert wrong.err.startswith("error: --split sorted: expected random:FRACTION or chronological:FRACTION")


def test_a_copied_recipe_is_prepared_by_its_path(persia) -> None:
    copied = persia("recipe", "cp", "criteo", "mine")
    assert copied.out.splitlines() == ["mine/README.md", "mine/prepare.py"]
    assert copied.err == "next      persia recipe prepare ./mine --input PATH\n"
    Path("train.txt").write_text(f"0{ROW[1:]}\n" + f"{ROW}\n" * 4)
    ended = persia("recipe", "prepare", "./mine", "--input", "train.txt")
    assert ended.err.splitlines()[-1] == "next      persia train dataset=data/mine/dataset.yaml"
    assert persia("recipe", "cp", "criteo", "mine").err.startswith("error: mine exists already")
    wrong = persia("recipe", "prepare", "mine", "--input", "train.txt").err
    assert wrong == "error: no recipe mine comes with persia; give the folder of this name as ./mine\n"


def test_run_prepares_once_and_trains(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[list[str]] = []
    monkeypatch.setattr("persia_cli.commands.job_view.train_and_show", lambda words, folders: trained.append(words))
    nothing = persia("recipe", "run", "criteo")
    assert (nothing.code, "data/criteo/dataset.yaml" in nothing.err, "--input" in nothing.err) == (2, True, True)
    Path("train.txt").write_text(f"0{ROW[1:]}\n" + f"{ROW}\n" * 4)
    assert persia("recipe", "run", "criteo", "--input", "train.txt", "train.epochs=2").code == 0
    assert persia("recipe", "run", "criteo", "model=ffnn").code == 0
    words = ["conf=criteo", "dataset=data/criteo/dataset.yaml"]
    assert trained == [[*words, "train.epochs=2"], [*words, "model=ffnn"]]
