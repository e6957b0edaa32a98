"""A job that this machine cannot run, or whose network would fail, is refused before any role starts."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.cgroups import memory_bytes
from persia_cli.engines.readiness import require_network, require_ready
from persia_cli.errors import ConfigError
from persia_cli.plan.job import JobPlan, plan_job
from persia_cli.rehearsal.questions import refusal
from tests.support.runs import make_facts, make_run

NETWORK = """\
from torch import nn

class Good(nn.Module):
    def __init__(self, shape):
        super().__init__()
        print("built")
        self.last = nn.Linear(shape.dense, shape.tasks)
    def forward(self, batch):
        return self.last(batch.dense)

class Quits(nn.Module):
    def __init__(self, shape):
        import os
        os._exit(7)
"""


def plan_of(run: Any) -> JobPlan:
    return plan_job(run, make_facts(run, 100, 20), "train", Path("runs/a"))


def plan(name: str, ranks: int, file: Path, **args: Any) -> JobPlan:
    model = {"kind": "custom", "dim": 8, "file": str(file), "name": name, "args": args}
    return plan_of(make_run(model=model, cluster={"kind": "local", "nn_workers": ranks}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NETWORK)
    return path


def test_a_network_that_ends_its_process_is_refused(file: Path) -> None:
    """The network before it works, whatever it prints."""
    with pytest.raises(ConfigError, match="building it ended the process with exit code 7"):
        require_ready([plan("Good", 1, file), plan_of(make_run()), plan("Quits", 1, file)])


def test_memory_that_the_machine_does_not_have_is_refused() -> None:
    has = memory_bytes()
    require_ready([plan_of(make_run(embedding={"memory": has // 2}))])
    with pytest.raises(ConfigError, match=r"embedding.memory=.*: this machine has .* GiB .* give at most"):
        require_ready([plan_of(make_run(embedding={"memory": 2 * has}))])


def test_a_cuda_device_that_is_not_there_is_refused() -> None:
    torch = pytest.importorskip("torch")
    many = torch.cuda.device_count()
    run = make_run(train={"batch_size": 32, "device": f"cuda:{many}"})
    with pytest.raises(ConfigError, match=f"train.device=cuda:{many}: torch sees"):
        require_ready([plan_of(run)])


@pytest.mark.parametrize("train", [{"precision": "tf32"}, {"graphs": "on"}])
def test_settings_of_a_gpu_are_refused_where_there_is_none(
    file: Path, train: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any role starts; other machines may have one, and so may this."""
    torch = pytest.importorskip("torch")
    model = {"kind": "custom", "dim": 8, "file": str(file), "name": "Good"}
    job = plan_of(make_run(model=model, train={"batch_size": 32, **train}))
    require_network(job)
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(torch.cuda, "device_count", lambda there=there: int(there))
        assert (refusal(job.run) is None) is there
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        with pytest.raises(ConfigError, match=next(iter(train))):
            require_ready([plan_of(make_run(train={"batch_size": 32, **train}))])


def test_without_a_compiler_compiling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="no-such-compiler was not found"):
        require_ready([plan_of(make_run(train={"batch_size": 32, "compile": True}))])
