"""`persia launch-role`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from persia_cli.commands.options import ConfDir, Overrides, examples

if TYPE_CHECKING:
    from persia_cli.engines.role_options import RoleOptions

EXAMPLES = examples(
    "persia launch-role coordinator --coordinator tcp://127.0.0.1:7000 --index 0 --run-dir runs/a conf=criteo",
    "persia launch-role embedding-server --coordinator tcp://127.0.0.1:7000 --index 0 --token-file runs/a/token",
    "persia launch-role nn-worker --coordinator tcp://127.0.0.1:7000 --index 1 --token-file runs/a/token",
)


def launch_role(
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE", help="coordinator, embedding-server, embedding-worker, data-loader or nn-worker."
        ),
    ],
    coordinator: Annotated[str, typer.Option("--coordinator", metavar="ADDR", help="Address of the coordinator.")],
    index: Annotated[
        str,
        typer.Option(
            "--index",
            metavar="I",
            help="Number of this replica of the role, from 0 on; auto: the one that Kubernetes gives its pod.",
        ),
    ],
    overrides: Overrides = None,
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDR", help="Address to listen at, if others do not reach it there."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="ADDR",
            help="Address that others reach it at.",
            show_default="towards the coordinator",
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="Run directory; for the coordinator only.")
    ] = None,
    conf_dir: ConfDir = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File of the job's secret, which all its roles need; the coordinator writes it.",
            show_default="RUN_DIR/token for the coordinator",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="File of the job's keys (persia keys new), instead of a token: connections over TCP are encrypted. "
            "- stands for standard input, from which conf=- takes the configuration that follows.",
            show_default="PERSIA_KEY_FILE",
        ),
    ] = None,
    trusted_network: Annotated[
        bool,
        typer.Option("--trusted-network", help="Talk to other machines without keys, as cluster.encryption=none."),
    ] = False,
    cpus: Annotated[
        str | None,
        typer.Option("--cpus", metavar="LIST", help="Processors to run on, as in cluster.pin.", show_default="all"),
    ] = None,
    supervise: Annotated[
        bool, typer.Option("--supervise", help="Run it as a child, and start it again if it dies.")
    ] = False,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
    incarnation: Annotated[int, typer.Option("--incarnation", hidden=True)] = 1,
    memory_file: Annotated[int | None, typer.Option("--memory-file", hidden=True)] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Start one replica of a role by hand.

    The coordinator takes the configuration; all other roles get it from the coordinator.
    With --supervise, this process is the parent of the replica's. A data loader or embedding worker that dies gets a
    new process, as often as recovery.max_restarts allows, and the job goes on; so does an embedding server that is
    killed.
    """
    from persia_cli.engines.affinity import pin

    if cpus is not None:
        pin(cpus)  # before other threads are there, and before libraries count the processors
    from persia_cli.engines.driver_input import STDIN, read_first_lines, read_input
    from persia_cli.engines.processes import die_with
    from persia_cli.engines.role import JOIN_S, run_process
    from persia_cli.engines.role_options import RoleOptions, index_of
    from persia_cli.wire.addresses import resolved

    if parent is not None:
        die_with(parent)
    config = ""
    if attached:
        key_file = read_first_lines(sys.stdin.buffer)
    elif str(key_file) == STDIN:
        handed = read_input(sys.stdin.buffer)
        key_file, config = handed.key_file, handed.config
    waits_s = JOIN_S if supervise or attached else 0.0
    is_first = role == "coordinator"
    coordinator = resolved(coordinator, waits_s, lambda text: print(text, file=sys.stderr), is_listener=is_first)
    bind, advertise = (own and resolved(own, is_listener=True) for own in (bind, advertise))
    number = index_of(index)
    replica = RoleOptions(
        role, number, coordinator, bind, advertise, incarnation, memory_file, run_dir, token_file, key_file,
        trusted_network, cpus,
    )  # fmt: skip
    replica.check()
    if overrides:
        _prepare(replica, overrides, conf_dir or [], config)
    if supervise or attached:
        from persia_cli.engines.supervisor import supervise_role

        supervise_role(replica, sys.stdin.fileno() if attached else None)
    else:
        run_process(replica)


def _prepare(replica: "RoleOptions", overrides: list[str], folders: list[Path], config: str) -> None:
    """Create the run directory of a coordinator that is started with a configuration; `config` is that of `conf=-`."""
    from persia_cli.errors import UserError

    if replica.role != "coordinator":
        raise UserError(f"{replica.role} gets its configuration from the coordinator; give '{overrides[0]}' there")
    assert replica.run_dir is not None
    from persia_cli.commands.progress import SCREEN
    from persia_cli.config.compose import compose_run
    from persia_cli.config.record import parsed
    from persia_cli.engines.job import prepare_run_dir
    from persia_cli.engines.readiness import require_network, with_dense_fit
    from persia_cli.jobs.plan import AUTO, plan_training, split_resume

    overrides, resumed = split_resume(overrides)
    if resumed not in (None, AUTO):
        raise UserError(f"resume={resumed}: the coordinator goes on with the run in its --run-dir; give resume=auto")
    run = parsed(config, "standard input") if overrides == ["conf=-"] else compose_run(overrides, folders)
    replica.require_keys(run.cluster)
    plan = plan_training(run, replica.run_dir, resumed, SCREEN)
    require_network(plan)
    plan = with_dense_fit(plan)
    prepare_run_dir(plan)
