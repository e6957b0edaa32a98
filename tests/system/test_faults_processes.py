"""Exactly once with every role in a separate process and two ranks."""

import random
import subprocess
import sys
from contextlib import ExitStack

import pytest

from persia_cli.engines.job import JobResult, prepare_run_dir, result_of
from persia_cli.plan.job import JobPlan
from persia_cli.wire.secret import TOKEN
from tests.conftest import poll_for
from tests.support.jobs import losses, plan, train
from tests.support.proxy import Proxy
from tests.support.small import STEPS, WORDS, counted, figures
from tests.support.threads import free_address

LIMIT_S = 120.0
CLUSTER = [
    "cluster=local",
    "cluster.transport=tcp",
    "cluster.nn_workers=2",
    "cluster.embedding_servers=2",
    "cluster.embedding_workers=2",
]


def train_and_cut(job: JobPlan, moments: random.Random) -> tuple[JobResult, int]:
    """Start every replica by `persia launch-role` behind a proxy; break connections until the job is over."""
    prepare_run_dir(job)
    with ExitStack() as open_ones:
        proxies: list[Proxy] = []
        processes: list[subprocess.Popen[bytes]] = []
        for replica in job.replicas:
            bind = free_address()
            proxies.append(open_ones.enter_context(Proxy(bind)))
            command = [sys.executable, "-m", "persia_cli", "launch-role", replica.role, "--index", str(replica.index)]
            command += ["--coordinator", proxies[0].address, "--bind", bind, "--advertise", proxies[-1].address]
            if replica.role == "coordinator":
                command += ["--run-dir", str(job.run_dir)]
            else:
                command += ["--token-file", str(job.run_dir / TOKEN)]
            log = open_ones.enter_context((job.run_dir / "roles" / f"{replica.name}.log").open("wb"))
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            open_ones.callback(processes[-1].wait)
            open_ones.callback(processes[-1].kill)

        def over() -> bool:
            try:
                processes[0].wait(moments.uniform(0.01, 0.06))
            except subprocess.TimeoutExpired:
                moments.choice(proxies).cut()
                return False
            return True

        poll_for(over, LIMIT_S, "the end of the job")
        codes = [process.wait(LIMIT_S) for process in processes]
        said = "\n".join(log.read_text() for log in sorted((job.run_dir / "roles").iterdir()))
        assert not any(codes), f"exit codes {codes}\n{said}"
        return result_of(job.run_dir), sum(proxy.cuts for proxy in proxies)


@pytest.mark.slow
@pytest.mark.processes
def test_two_ranks_have_the_same_losses_to_the_bit(tmp_path):
    words = [*WORDS, *CLUSTER]
    undisturbed = train(words, tmp_path / "undisturbed")
    result, cuts = train_and_cut(plan(words, tmp_path / "run"), random.Random(1))

    assert cuts > 300
    assert counted(result, "embedding-worker", "resent") > 0
    assert counted(result, "embedding-server", "repeated") > 0
    assert len(losses(result)) == STEPS
    assert losses(result) == losses(undisturbed)
    assert figures(result, ranks=2) == figures(undisturbed, ranks=2)
