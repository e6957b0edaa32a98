"""Addresses of replicas: their formats, and which of them other machines can reach."""

import array
import fcntl
import ipaddress
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from persia_cli.errors import WireError
from persia_cli.wire.process import MARK, memory_domain

MAX_IPC_PATH = 107
"""Largest number of bytes of a Unix socket's path on Linux."""
MAX_PORT = 65535
SUPPORTED = "use tcp://127.0.0.1:PORT or ipc://PATH"
NEEDS_KEYS = (
    "so its connections have to be encrypted: make a file of keys with `persia keys new FILE`, and give it to every "
    "role of the job, on every machine: --key-file FILE"
)
NAME_POLL_S = 0.5
SOCKETS = "persia-job-"
"""Begin of the name of a job's folder for its Unix sockets and its secret."""
ANY_PORT = ("0", "*")
"""Ports that ask the system to choose a free one."""


class AddressError(WireError):
    """An address that is not valid, not usable, or not available."""

    exit_code = 2


def check_address(address: str, allows_remote: bool = False) -> None:
    """Raise AddressError for an invalid address; unless `allows_remote`, also for one that other machines can reach."""
    transport, separator, endpoint = address.partition("://")
    if not separator:
        raise AddressError(f"{address!r} is not an address: it does not begin with tcp:// or ipc://; {SUPPORTED}")
    if address != "".join(address.split()):
        raise AddressError(f"{address!r} is not an address: it contains a space; {SUPPORTED}")
    if transport == "tcp":
        _check_tcp(address, endpoint)
        if not allows_remote and is_remote(address):
            raise AddressError(f"{address} can be reached from other machines, {NEEDS_KEYS}")
    elif transport == "ipc":
        _check_ipc(address, endpoint)
    elif transport != "inproc" or not endpoint:
        raise AddressError(f"{address!r} is not an address that persia supports; {SUPPORTED}")


def is_remote(address: str) -> bool:
    """Return True for a valid address that other machines can reach: of tcp, but not of the loopback interface."""
    return address.startswith("tcp://") and not ipaddress.IPv4Address(host_of(address)).is_loopback


def host_of(address: str) -> str:
    """Return the IP address in an address of tcp."""
    return address.removeprefix("tcp://").rpartition(":")[0]


def with_domain(address: str) -> str:
    """Return an address as other replicas get it: with this process's memory domain, if other machines can reach it."""
    return f"{address}{MARK}{memory_domain()}" if is_remote(address) else address


def address_towards(address: str) -> str:
    """Return the IP address of this machine on the route to an address of tcp; raise AddressError if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host_of(address), 1))  # nothing is sent
        except OSError as error:
            raise AddressError(f"this machine has no route to {address}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def resolved(
    address: str, limit_s: float = 0.0, notify: Callable[[str], None] = lambda text: None, is_listener: bool = False
) -> str:
    """Return an address of tcp with the IP address of its host; any other address unchanged.

    Wait up to `limit_s` for an unknown host, whose machine may be starting. Raise AddressError if it stays unknown. If
    this process listens there (`is_listener`), raise it also for a name that only this machine resolves to itself,
    since others must reach it.
    """
    transport, _, endpoint = address.partition("://")
    host, colon, port = endpoint.rpartition(":")
    if transport != "tcp" or not colon or not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        return address
    deadline, notified = time.monotonic() + limit_s, False
    while True:
        try:
            return f"tcp://{_ip_of(host, address, is_listener)}:{port}"
        except OSError as error:
            if time.monotonic() >= deadline:
                raise AddressError(f"{address}: there is no host {host}: {error.strerror}; check the name") from error
        if not notified:
            notified = True
            notify(f"waiting up to {limit_s:g} s for the host name {host} to be resolvable")
        time.sleep(NAME_POLL_S)


def _ip_of(host: str, address: str, is_listener: bool) -> str:
    """Return the IP address of a host, if possible one that other machines reach; raise OSError if it is unknown."""
    known = socket.gethostbyname_ex(host)[2]
    remote = [ip for ip in known if not ipaddress.IPv4Address(ip).is_loopback]
    # Numbers, or localhost, mean this machine on purpose.
    if is_listener and not remote and host != "localhost" and not re.fullmatch("[0-9.]+", host):
        raise AddressError(
            f"{address}: this machine resolves {host} to {known[0]}, which no other machine reaches (see /etc/hosts); "
            f"give its IP address in place of the name, or {known[0]} if no other machine needs it"
        )
    return [*remote, *known][0]


def check_between_processes(address: str, allows_remote: bool = False) -> None:
    """Raise AddressError, as `check_address`, also for an address within one process."""
    check_address(address, allows_remote)
    if address.startswith("inproc://"):
        raise AddressError(f"{address} can be reached from one process only; {SUPPORTED}")


def check_reachable(address: str, allows_remote: bool = False) -> None:
    """Raise AddressError unless another process could connect to this address."""
    check_between_processes(address, allows_remote)
    transport, _, endpoint = address.partition("://")
    if transport == "tcp" and endpoint.rpartition(":")[2] in ANY_PORT:
        raise AddressError(
            f"cannot connect to {address}: with this port, the coordinator chose a free port and printed it; "
            "give the printed address"
        )


def check_free(address: str) -> None:
    """Raise AddressError unless this process could listen at this valid tcp or ipc address."""
    if address.startswith("tcp://"):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        try:
            with socket.socket() as probe:
                # As libzmq does: connections of an earlier listener at this port may not be fully closed yet.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, 0 if port == "*" else int(port)))
                probe.listen()
        except OSError as error:
            raise AddressError(f"cannot listen at {address}: {error.strerror}") from error
    elif not os.access(Path(address.partition("://")[2]).parent, os.W_OK | os.X_OK):
        raise AddressError(f"cannot listen at {address}: this user cannot write to the folder")


def _check_tcp(address: str, endpoint: str) -> None:
    host, colon, port = endpoint.rpartition(":")
    if endpoint.count(":") > 1:
        raise AddressError(f"{address} is an IPv6 address, which persia does not support; use tcp://127.0.0.1:PORT")
    if not colon:
        raise AddressError(f"{address} has no port; use tcp://{endpoint or '127.0.0.1'}:PORT")
    if port != "*" and not (re.fullmatch("[0-9]{1,5}", port) and int(port) <= MAX_PORT):
        raise AddressError(
            f"{address} does not have a valid port: {port!r} is not a number from 1 to {MAX_PORT} "
            "(0 lets the system choose one)"
        )
    try:
        is_every = ipaddress.IPv4Address(host).is_unspecified
    except ValueError:
        raise AddressError(
            f"{address} contains a host name, but an IP address is needed; use tcp://127.0.0.1:{port}"
        ) from None
    if is_every:
        raise AddressError(
            f"{address} stands for every network interface of the machine; use the IP address of the one that the "
            "other machines reach"
        )


def _check_ipc(address: str, endpoint: str) -> None:
    path = Path(endpoint)
    if not endpoint or endpoint == "*" or endpoint.endswith("/"):
        raise AddressError(f"{address} does not contain a file path; use ipc://PATH with the path of the socket")
    ipc_address(path.parent, path.name)
    if not path.parent.is_dir():
        raise AddressError(f"{address}: the folder {path.parent} does not exist; create it first, private to you")


def ipc_address(directory: Path, name: str) -> str:
    """Return the address of the ipc socket `name`; raises AddressError if its path is longer than the system allows."""
    path = directory / name
    if len(bytes(path)) > MAX_IPC_PATH:
        raise AddressError(
            f"{path} is longer than {MAX_IPC_PATH} bytes, the limit for a Unix socket; use a shorter path, or set "
            "TMPDIR to one"
        )
    return f"ipc://{path}"


SIOCGIFCONF = 0x8912
"""ioctl: all addresses of IPv4, each with the name of its interface (netdevice(7))."""
NAME_BYTES, ENTRY_BYTES, ADDRESS_AT = 16, 40, 20
MAX_ADDRESSES = 1024


def interface_of(address: str) -> str:
    """Return the name of the interface with this IP address; raises AddressError if no interface has it."""
    entries = array.array("B", bytes(MAX_ADDRESSES * ENTRY_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("iL", len(entries), entries.buffer_info()[0])
        [nbytes] = struct.unpack_from("i", fcntl.ioctl(asking.fileno(), SIOCGIFCONF, request))
    for at in range(0, nbytes, ENTRY_BYTES):
        entry = entries[at : at + ENTRY_BYTES].tobytes()
        if socket.inet_ntoa(entry[ADDRESS_AT : ADDRESS_AT + 4]) == address:
            return entry[:NAME_BYTES].partition(b"\0")[0].decode().partition(":")[0]
    raise AddressError(f"no network interface of this machine has the address {address}; check --bind")
