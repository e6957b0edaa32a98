"""Scripts for sbatch: unchanged since a person checked them, valid for shells, and for any job."""

import io
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.compose import compose_run
from persia_cli.config.record import parsed
from persia_cli.config.schema import RoleResources, Run
from persia_cli.engines.driver_input import read_input
from persia_cli.engines.driver_process import LOG
from persia_cli.engines.job import anchored
from persia_cli.engines.placement import resources_of
from persia_cli.engines.slurm.machines import MachineSlot, machines_of, mebibytes, slots_of
from persia_cli.engines.slurm.script import END, script
from persia_cli.errors import ConfigError
from persia_cli.plan.job import Replica, all_replicas
from persia_cli.version import __version__

RUN_DIR = Path("/home/me/my runs/shop")
PLAIN = ["conf=synthetic", "cluster=slurm"]
SHOP = [
    *PLAIN,
    "train.device=cuda",
    "embedding.memory=256GiB",
    "checkpoint.grace_s=90.5",
    *(f"cluster.{role}=2" for role in ("data_loaders", "embedding_workers", "embedding_servers", "nn_workers")),
    "cluster.resources.nn_worker.gpus=2",
    "cluster.resources.nn_worker.cpus=8",
    "cluster.pin.nn_worker=[0-7, 8-15]",
    "cluster.gpu_nodes=1",
    "cluster.partition=cpu",
    "cluster.gpu_partition=gpu",
    "cluster.gpu=gpu:a100",
    "cluster.hours=1.51",
    "cluster.options=['--account=ranking', '--qos=long', '--constraint=avx512']",
    "cluster.setup=['module load python', 'source ~/venv/bin/activate']",
    "cluster.persia=~/venv/bin/persia",
]
GOLDEN = {"plain.sh": PLAIN, "shop.sh": SHOP}


def without_configuration(text: str) -> str:
    """Return a script without the configuration, which has keys of all of Persia, and without the home folder."""
    head, _ = text.split(f"<< '{END}'\n", 1)
    return f"{head}<< '{END}'\n…\n{END}\n".replace(__version__, "VERSION").replace(str(Path.home()), "HOME")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_job_is_rendered_as_last_checked(name: str) -> None:
    """To renew a file: write what is compared into it, and look at what has changed."""
    text = without_configuration(script(compose_run(GOLDEN[name]), RUN_DIR))
    assert text == Path(__file__).with_name(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("words", GOLDEN.values(), ids=GOLDEN)
def test_a_shell_takes_it(words: list[str]) -> None:
    text = script(compose_run(words), RUN_DIR)
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_shell_passes_the_configuration_unchanged(tmp_path: Path) -> None:
    run = compose_run([*SHOP[:-2], "checkpoint.path='/data/$(id) `id` $HOME'"])
    text = script(run, tmp_path / "my runs")
    command = next(line for line in text.splitlines() if " drive " in line and line.startswith("exec "))
    shown = text.replace(command, f"kill -USR1 $$; cat << '{END}'")
    said = subprocess.run(["bash"], input=shown, capture_output=True, text=True, cwd=tmp_path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    handed = read_input(io.BytesIO((tmp_path / "my runs/driver" / LOG).read_bytes()))
    assert handed.key_file is None
    assert parsed(handed.config, "the shell") == anchored(run)
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]


COUNTS = st.integers(1, 9)


@settings(max_examples=20, deadline=None)
@given(
    loaders=COUNTS,
    workers=COUNTS,
    servers=COUNTS,
    ranks=COUNTS,
    gpus=st.integers(0, 2),
    apart=st.booleans(),
    placement=st.sampled_from(["beside_servers", "beside_ranks", "packed"]),
)
def test_machines_have_capacity_for_their_replicas_and_none_is_idle(
    loaders: int, workers: int, servers: int, ranks: int, gpus: int, apart: bool, placement: str
) -> None:
    counts = {
        "data_loaders": loaders,
        "embedding_workers": workers,
        "embedding_servers": servers,
        "nn_workers": ranks,
        "resources": {"nn_worker": RoleResources(gpus=gpus)},
        "placement": placement,
    }
    changes = {**counts, "gpu_nodes": None if apart else 0}
    run = plain().model_copy(update={"cluster": plain().cluster.model_copy(update=changes)})
    kinds, places = machines_of(run), slots_of(run)
    assert len(kinds) == (2 if gpus and apart and placement != "packed" else 1)
    assert tuple(places) == all_replicas(run)
    assert places[all_replicas(run)[0]].node == 0
    for number, kind in enumerate(kinds):
        for node in range(kind.nodes):
            there = [
                resources_of(run, each.role) for each, at in places.items() if (at.kind, at.node) == (number, node)
            ]
            assert 0 < sum(each.cpus for each in there) <= kind.resources.cpus
            assert sum(mebibytes(each.memory) for each in there) <= mebibytes(kind.resources.memory)
            assert sum(each.gpus for each in there) <= kind.resources.gpus
    for replica, place in places.items():
        if placement == "packed":
            assert place == MachineSlot(0, 0)
        elif replica.role == "embedding-worker" and placement == "beside_servers":
            assert place == places[Replica("embedding-server", replica.index % servers)]
        elif replica.role in ("embedding-worker", "data-loader") and placement == "beside_ranks":
            assert place == places[Replica("nn-worker", replica.index % ranks)]


@cache
def plain() -> Run:
    return compose_run(PLAIN)


def run_of(words: list[str]) -> Run:
    return compose_run([*PLAIN, *words])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cluster.nodes=3"], "cluster.nodes=3: only 1 would have a replica to run"),
        (["cluster.placement=packed", "cluster.gpu_nodes=2"], "gpu_nodes=2: cluster.placement=packed puts all"),
        (["cluster.placement=packed", "cluster.gpu_partition=a"], "cluster.gpu_partition=a: cluster.plac"),
        (["cluster.pin.nn_worker='0-2'"], "cluster.pin.nn_worker=0-2 for nn-worker-0 are 3 processors"),
        (["cluster.options=[-x]"], "cluster.options"),
        (["cluster.gpu_partition=a", "cluster.gpu_nodes=0"], "gpu_partition is for separate machines"),
        (["cluster.hours=0.02"], "Slurm tells the job to save 85 s before its time is over"),
        (["cluster.hours=0.03"], "ask for at least 3 minutes"),
        (["cluster.persia='$HOME/venv/bin/persia'"], "no shell expands it on the machines"),
        (["cluster.persia='\"persia'"], "No closing quotation"),
        (["checkpoint.grace_s=65476"], "Slurm warns a job at most 65535 s before its time is over, and 60 of them"),
        (["cluster.encryption=none"], "where cluster.kind=slurm; cluster.kind=local has it"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        script(run_of(words), RUN_DIR)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name", ["a\nid #", "a%j", "a\\b"])
def test_a_run_directory_with_characters_that_sbatch_replaces_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Slurm takes no folder with control characters, % or backslashes"):
        script(run_of([]), RUN_DIR / name)
