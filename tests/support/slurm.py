"""A cluster of Slurm on the hosts of a lab: its controller on the first, a node daemon on each.

Daemons, files and ports are those of the hosts, and end with them. There is no authentication (`auth/none`), since
no other machine reaches it.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from persia_cli.observe.journal import METRICS, read_journal
from tests.conftest import poll_for
from tests.support.hosts import Host, HostProcess, argv_of
from tests.support.s3 import BUCKET, SECRET

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PERSIA = [sys.executable, "-P", "-m", "persia_cli"]
LIMIT_S = 240.0
CONFIG, NAMES = Path("/tmp/slurm.conf"), "/tmp/names"
ENVIRONMENT = {"SLURM_CONF": str(CONFIG), "AWS_ACCESS_KEY_ID": "AKIDOFTEST", "AWS_SECRET_ACCESS_KEY": SECRET}
CONTENT = """\
ClusterName=lab
SlurmctldHost={first}({address})
SlurmUser=root
AuthType=auth/none
AuthInfo=cred_expire=10
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
GresTypes=gpu
JobRequeue=1
KillWait=20
SlurmdTimeout=20
StateSaveLocation=/tmp/slurm-state
SlurmdSpoolDir=/tmp/slurm-spool
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmctldLogFile=/tmp/slurmctld.log
SlurmdLogFile=/tmp/slurmd.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeAddr={address} CPUs=16 RealMemory=64000"
GPU = " Gres=gpu:1 Weight=10"
"""Extra properties of the last host: its weight makes Slurm use it last for jobs without a GPU."""
GPUS = "NodeName={name} Name=gpu File=/dev/null\n"


def why_not() -> str:
    """Return why no cluster can be made here; empty if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"Slurm's {missing[0]} is not installed; scripts/install_slurm.sh installs it" if missing else ""


needs_slurm = pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm is installed")
"""Mark of tests that need Slurm."""


class SlurmCluster:
    """A running cluster; jobs are submitted on its first host."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts
        self.started: list[HostProcess] = []

    def run(self, *command: str, within_s: float = 60.0) -> tuple[int, str]:
        """Run a command on the first host to its end; return its exit code and output."""
        process = self.start(*command)
        try:
            said, _ = process.outer.communicate(timeout=within_s)
        finally:
            process.kill()
        return process.outer.returncode, said.decode()

    def start(self, *command: str, log: Path | None = None) -> HostProcess:
        """Start a command on the first host; `log` gets its output, which is otherwise a pipe."""
        if log is None:
            process = self.hosts[0].start(command, subprocess.PIPE, ENVIRONMENT)
        else:
            with log.open("ab") as output:
                process = self.hosts[0].start(command, output, ENVIRONMENT)
        self.started.append(process)
        return process

    def slurm(self, *command: str) -> str:
        """Run a program of Slurm, which must succeed; return its output."""
        code, said = self.run(*command)
        assert code == 0, f"{shlex.join(command)}: {said}"
        return said.strip()

    def jobs(self) -> dict[str, str]:
        """The state of each job that is not over."""
        return dict(line.split() for line in self.slurm("squeue", "-h", "-o", "%i %T").splitlines())

    def replicas(self, name: str = "") -> list[psutil.Process]:
        """The processes of the roles (not their supervisors) on all hosts, or those of one role."""
        found = [child for host in self.hosts for child in psutil.Process(host.pid).children(recursive=True)]
        return [process for process in found if "--parent" in (words := argv_of(process)) and name in " ".join(words)]

    def supervisors(self, name: str = "") -> list[psutil.Process]:
        """The supervisors of the roles on all hosts, or those of one role."""
        found = [child for host in self.hosts for child in psutil.Process(host.pid).children(recursive=True)]
        return [
            process
            for process in found
            if "--attached" in (words := argv_of(process)) and words[0] != "srun" and name in " ".join(words)
        ]

    def seen(self, path: str) -> Path:
        """The path of a file of the first host on this machine."""
        return self.hosts[0].root / path.lstrip("/")

    def wait_for_training(self, run: str, said: Path) -> None:
        """Wait until steps are trained."""
        poll_for(lambda: read_journal(self.seen(run) / METRICS), LIMIT_S, f"steps trained: {said.read_text()[-3000:]}")

    def said(self) -> str:
        """The ends of the logs of all daemons."""
        logs = [host.root / "tmp" / name for host in self.hosts for name in ("slurmctld.log", "slurmd.log")]
        return "\n".join(f"== {log}\n{log.read_text()[-4000:]}" for log in logs if log.exists())


@contextmanager
def cluster_on(hosts: Sequence[Host]) -> Iterator[SlurmCluster]:
    """Run a cluster on the hosts of a lab, which ends with them."""
    first = hosts[0]
    names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts)
    nodes = "\n".join(NODE.format(name=host.name, address=host.address) for host in hosts) + GPU
    content = CONTENT.format(first=first.name, address=first.address, nodes=nodes)
    cluster = SlurmCluster(hosts)
    for host in hosts:
        (host.root / CONFIG.relative_to("/")).write_text(content)
        (host.root / "tmp/gres.conf").write_text(GPUS.format(name=hosts[-1].name))
        (host.root / NAMES.lstrip("/")).write_text(names)
        code, said = host.run(["/bin/sh", "-c", f"mount --bind {NAMES} /etc/hosts && mkdir /tmp/slurm-state"])
        assert code == 0, said
    daemons = [first.start([shutil.which("slurmctld") or "", "-D"], environment=ENVIRONMENT)]
    try:
        daemons += [host.start([shutil.which("slurmd") or "", "-D"], environment=ENVIRONMENT) for host in hosts]
        poll_for(
            lambda: cluster.run("sinfo", "-h", "-t", "idle", "-o", "%D")[1].strip() == str(len(hosts)),
            60.0,
            "all nodes of the cluster",
        )
        yield cluster
    except BaseException:
        print(cluster.said())
        raise
    finally:
        for process in [*cluster.started, *daemons]:
            process.kill()


def free_store(host: Host, folder: str) -> str:
    """The URI of a folder in the store on a host, without credentials, which the environment of the cluster has."""
    return f"s3://{BUCKET}/{folder}?endpoint_override={host.address}:9000&scheme=http&region=us-east-1"
