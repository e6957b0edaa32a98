"""The job's secret for a replica that is started by hand, and a check that it may talk to other machines."""

import logging
import os
from pathlib import Path

from persia_cli.config.schema import Cluster
from persia_cli.errors import ConfigError
from persia_cli.storage.addresses import local_path
from persia_cli.wire.addresses import NEEDS_KEYS, AddressError, is_remote
from persia_cli.wire.secret import MAKE, JobSecret, read_keys
from persia_cli.wire.sockets import Context

log = logging.getLogger(__name__)

KEY_FILE = "PERSIA_KEY_FILE"
"""Environment variable that names the file of the job's keys."""
TRUSTING = (
    "nothing is encrypted: every program that can listen to this network sees the data, the rows and the job's token, "
    "and can take part in the job"
)


def key_file_of(given: Path | None, token_file: Path | None) -> Path | None:
    """Return the file of keys: the one that is given, else, without a token file, that of the environment."""
    if given is not None and token_file is not None:
        raise ConfigError("--key-file and --token-file: a job has keys or a token; give one of them")
    if given is not None or token_file is not None:
        return given
    named = os.environ.get(KEY_FILE)
    return local_path(named) if named else None


def require_given_keys(cluster: Cluster) -> None:
    """Raise UserError if a job that is about to start has a file of keys that is missing, public, or holds none.

    This comes before there is a run directory, which would be left behind.
    """
    if cluster.needs_keys and (given := key_file_of(None, None)) is not None:
        read_keys(given)


def key_file_of_coordinator(given: Path | None, token_file: Path | None, cluster: Cluster, address: str) -> Path | None:
    """Return the file of keys of a coordinator that listens at an address; None if its job has a token only.

    Raises ConfigError or AddressError if the configuration asks for keys and there are none, or the other way round.
    """
    if cluster.tcp_encryption == "none":
        if given is not None:
            raise ConfigError("--key-file is of no use with cluster.encryption=none; leave out one of them")
        return None
    file = key_file_of(given, token_file)
    if file is None and is_remote(address):
        raise AddressError(f"{address} can be reached from other machines, {NEEDS_KEYS}")
    if file is None and cluster.tcp_encryption == "curve":
        raise ConfigError(f"cluster.encryption=curve needs keys: {MAKE}, and give every role --key-file FILE")
    return file


def context_of(secret: JobSecret, trusts_network: bool = False) -> Context:
    """Return the context of a replica, and log by what it is protected, but nothing of its secret."""
    if secret.keys is not None:
        log.info("connections over TCP are encrypted with the keys %s", secret.keys.fingerprint)
    elif trusts_network:
        log.warning("the network is trusted: %s", TRUSTING)
    return Context(secret, trusts_network)
