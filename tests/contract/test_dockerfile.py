"""The Dockerfile copies what there is, and its user is that of pods. Whether it builds, no test says."""

from pathlib import Path

from persia_cli.engines.kubernetes.pod import USER

ROOT = Path(__file__).resolve().parents[2]


def instructions() -> list[list[str]]:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def test_it_copies_only_what_a_wheel_is_made_of() -> None:
    copied = [
        word for first, *words in instructions() if first == "COPY" and "--from" not in words[0] for word in words[:-1]
    ]
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "hatch_build.py", "persia_cli", "conf", "recipes", "LICENSE", "README.md"} == set(copied)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_nothing_runs_as_root() -> None:
    [user] = [words for first, *words in instructions() if first == "USER"]
    assert user == [str(USER)]
    assert instructions()[-1] == ["ENTRYPOINT", '["persia"]']
