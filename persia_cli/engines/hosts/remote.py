"""The command lines by which ssh starts something on a machine."""

import shlex
from collections.abc import Sequence

from persia_cli.config.schema import SshHost, SshHosts

OPTIONS = {
    "BatchMode": "yes",  # a question for a password would never be answered
    "ConnectTimeout": "15",
    "ServerAliveInterval": "10",
    "ServerAliveCountMax": "3",
}
"""Those that the user gives come first, and of two ssh takes the first."""


def ssh_command(hosts: SshHosts, host: SshHost, words: Sequence[str]) -> list[str]:
    """Return the command that runs `persia WORDS` on a machine, in the folder of its jobs."""
    options = [word for key, value in OPTIONS.items() for word in ("-o", f"{key}={value}")]
    return [*shlex.split(hosts.ssh), "-T", *options, host.ssh, remote_command(hosts, words)]


def remote_command(hosts: SshHosts, words: Sequence[str]) -> str:
    """Return the same for the machine's shell, which finds Persia itself as the user says."""
    folder = _from_home(hosts.folder)
    return f"mkdir -p {folder} && cd {folder} && {hosts.persia} {shlex.join(words)}"


def _from_home(folder: str) -> str:
    """Return a folder quoted for a shell, but for a tilde at its beginning."""
    if folder == "~":
        return folder
    return f"~/{shlex.quote(folder[2:])}" if folder.startswith("~/") else shlex.quote(folder)
