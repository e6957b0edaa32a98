"""An object store: moto's S3 server in its own process, reached through sockets."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from persia_cli.storage.addresses import VARIABLE
from tests.support.hosts import Host

SECRET = "sEcReT-of-the-store"
BUCKET = "models"


@dataclass(frozen=True)
class ObjectStore:
    """A server with one empty bucket."""

    port: int

    def uri(self, path: str, port: int | None = None) -> str:
        """The URI of a folder in the bucket, with its credentials, optionally through another port."""
        query = f"endpoint_override=127.0.0.1:{port or self.port}&scheme=http&region=us-east-1"
        return f"s3://AKIDOFTEST:{SECRET}@{BUCKET}/{path}?{query}"


PORT = 9000
"""Port of a store on a host of a lab."""
MAKE_BUCKET = """
import sys, time, urllib.request
for _ in range(600):
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="PUT"), timeout=5).close()
        break
    except OSError:
        time.sleep(0.1)
else:
    sys.exit("moto's server does not answer")
"""


@contextmanager
def store_on(host: Host) -> Iterator[str]:
    """Yield the URI, with its credentials, of an empty folder that only the hosts of a lab reach."""
    server = host.start([sys.executable, "-m", "moto.server", "-H", host.address, "-p", str(PORT)])
    try:
        address = f"{host.address}:{PORT}"
        code, said = host.run([sys.executable, "-c", MAKE_BUCKET, f"http://{address}/{BUCKET}"], 90.0)
        assert code == 0, said
        yield f"s3://AKIDOFTEST:{SECRET}@{BUCKET}/saved?endpoint_override={address}&scheme=http&region=us-east-1"
    finally:
        server.kill()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start a server, and end it with the block; this process then forgets its credentials."""
    before = os.environ.get(VARIABLE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        subprocess.run([sys.executable, "-c", MAKE_BUCKET, f"http://127.0.0.1:{port}/{BUCKET}"], check=True, timeout=90)
        yield ObjectStore(port)
    finally:
        server.kill()
        server.wait(30)
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
