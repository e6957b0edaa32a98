"""The socket of a server, and the requirements for requests from other machines."""

import ipaddress
import socket
import ssl
from pathlib import Path

from persia_cli.errors import UserError

TOKEN = "--token-file FILE, which holds a secret that they must know"
"""The option of a guarded server, as errors name it."""
STALLED_MS = 30_000
"""Milliseconds after which a connection ends whose client takes no bytes."""


def bound(
    host: str, port: int, is_guarded: bool, guards: str = f"{TOKEN}, or --tls CERT KEY, or both"
) -> socket.socket:  # fmt: skip
    """Return a socket that is bound to an address, and does not listen yet; a port that is free if `port` is 0.

    `::` is all addresses, of IPv4 too. Raises UserError, also for an address beyond this machine that is not guarded by
    one of `guards`.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]  # fmt: skip
    except (OSError, UnicodeError, OverflowError) as error:
        raise UserError(f"--host {host}: there is no such address ({error})") from error
    if not is_loopback(str(address[0])) and not is_guarded:
        raise UserError(f"--host {host} lets other machines ask: add {guards}; without --host only this machine can")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        # Connections inherit these.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another --port, or 0 for any that is free"
        ) from error
    return listener


def is_loopback(address: str) -> bool:
    """Return True if only this machine reaches a numeric address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def bound_to_path(path: Path) -> socket.socket:
    """Return a Unix socket that is bound to a path, and does not listen yet; raises UserError.

    The socket of a server that has died is replaced. Its mode is that of a new file: the umask decides who may connect.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            if _answers(path):
                raise UserError(f"--unix {path}: a server listens there; choose another path")
            path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UserError(f"--unix {path}: cannot listen there: {error.strerror or error}") from error
    except UserError:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def require_certificate(cert: Path, key: Path) -> None:
    """Raise UserError unless the two files are a certificate and its key without a password."""
    try:
        has_passphrase = b"ENCRYPTED" in key.read_bytes()
    except OSError as error:
        raise UserError(f"--tls: the key {key} cannot be read: {error.strerror}") from error
    if has_passphrase:
        raise UserError(
            f"--tls: the key {key} has a passphrase, which a server cannot ask for; write the key without it to a file "
            f"that only you can read: openssl pkey -in {key} -out FILE"
        )
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or getattr(error, "reason", None) or error
        raise UserError(f"--tls {cert} {key} cannot be used together: {reason}") from error
