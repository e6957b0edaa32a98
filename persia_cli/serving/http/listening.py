"""The address of a server, and the requirements for requests from other machines."""

import ipaddress
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from persia_cli.errors import UserError


class Address(NamedTuple):
    """A numeric address, and a port."""

    host: str
    port: int

    @property
    def is_near(self) -> bool:
        """True if only this machine reaches it."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback


TOKEN = "--token-file FILE, which holds a secret that they must know"
"""The option of a guarded server, as errors name it."""


def address_of(host: str, port: int, is_guarded: bool, guards: str = f"{TOKEN}, or --tls CERT KEY, or both") -> Address:
    """Return the address of a server, with a port that is free if `port` is 0.

    Raises UserError, also for an address beyond this machine that is not guarded by one of `guards`.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]  # fmt: skip
    except (OSError, UnicodeError, OverflowError) as error:
        raise UserError(f"--host {host}: there is no such address ({error})") from error
    if not Address(str(address[0]), port).is_near and not is_guarded:
        raise UserError(f"--host {host} lets other machines ask: add {guards}; without --host only this machine can")
    try:
        with socket.create_server(address[:2], family=family) as listener:
            return Address(*listener.getsockname()[:2])
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another --port, or 0 for any that is free"
        ) from error


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
