"""`persia on-host`, which ssh runs on the machines of a job with `cluster=hosts`; it is not for people."""

from persia_cli.commands.options import examples

EXAMPLES = examples("persia on-host  # what ssh runs first on each machine of persia train cluster=hosts")


def on_host() -> None:
    """Print the version of Persia, the memory and the processors of this machine."""
    from persia_cli.engines.hosts.ssh import facts_in_json

    print(facts_in_json())
