"""`persia serve`."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from persia_cli.commands.options import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket

    from persia_cli.serving.http.settings import ServerSettings

EXAMPLES = examples(
    "persia serve shop                                  # at http://127.0.0.1:8000, for this machine alone",
    "persia serve runs/shop                             # the same, of a run that is exported first",
    "persia serve published --max-lag 60                # a model that is trained on; its versions, as they come",
    "persia serve shop --workers 4 --missing init       # 4 processes, which share the rows",
    "persia serve shop --log asked --sample 0.1         # a tenth of the requests, as Parquet files",
    "persia serve shop --host 0.0.0.0 --token-file key  # for others, who must know the token in this file",
)


def serve(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR|RUN",
            help="A folder that persia export wrote; or a published folder or its URI, whose versions are followed; or "
            "a run directory, or one of its checkpoints, which is exported first, and that needs torch.",
        ),
    ],
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, max=1024, help="Processes.", show_default="one per processor"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="ADDR",
            help="Address to listen at. One that other machines reach needs --token-file or --tls.",
            show_default="127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="0: any that is free.", show_default="8000")
    ] = None,
    unix: Annotated[
        Path | None,
        typer.Option(
            "--unix", metavar="PATH",
            help="Listen at a Unix socket instead, for programs of this machine that may write to it.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE",
            help="File with a secret, which requests must bring: Authorization: Bearer SECRET.",
        ),
    ] = None,
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--tls", metavar="CERT KEY", help="Certificate and its key (PEM files): serve https."
        ),
    ] = None,
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=1, help="Of a worker; further ones get 503.")
    ] = 900,
    drain: Annotated[
        float,
        typer.Option(
            "--drain", metavar="SECONDS", min=0.0, max=3600.0,
            help="From SIGTERM to the end: requests are answered, and `ready` is not, so that load balancers leave.",
        ),
    ] = 0.0,
    missing: Annotated[
        Literal["zeros", "init", "rare"] | None,
        typer.Option(
            "--missing",
            help="The row of an id without one: zeros, the row it would begin with, or that of rare ids (recipes' "
            "--min-count).",
            show_default="rare where the model has a row for them, else zeros",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="DIR",
            help="Write the requests that are answered, with the predictions, as Parquet files into this folder.",
        ),
    ] = None,
    max_lag: Annotated[
        float | None,
        typer.Option(
            "--max-lag", metavar="SECONDS", min=1.0,
            help="Of a published folder: `ready` is false after so long without its current version.",
            show_default="always ready",
        ),
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option("--sample", metavar="FRACTION", help="Of the requests, how many --log writes.", show_default="1"),
    ] = None,
    log_every: Annotated[
        float | None,
        typer.Option(
            "--log-every", metavar="SECONDS", min=1.0,
            help="A file of --log appears after so long, or when it is large.",
            show_default="60",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Serve a model over HTTP (Open Inference Protocol).

    It needs no torch.
    """
    from persia_cli.commands.served_run import exported, is_saved
    from persia_cli.errors import UserError
    from persia_cli.publish.version import CURRENT, served_version
    from persia_cli.serving.http.settings import ServerSettings
    from persia_cli.storage.locations import address_of, location_of

    place = location_of(folder)
    if not isinstance(place, Path):
        served_version(place)  # models are served from a URI only if they are published there
    settings = ServerSettings(
        address_of(place),
        source=address_of(place) if (place / CURRENT).is_file() else None,
        max_lag_s=max_lag,
        missing=missing,
        token_file=_text(token_file),
        tls=None if tls is None else (str(tls[0].absolute()), str(tls[1].absolute())),
        log=_text(log),
        sample=1.0 if sample is None else sample,
        log_every_s=60.0 if log_every is None else log_every,
        drain_s=drain,
        most_connections=connections,
    )
    if sample is not None and log is None:
        raise UserError("--sample is of the requests that --log DIR writes; give that too")
    if log_every is not None and log is None:
        raise UserError("--log-every is of the files that --log DIR writes; give that too")
    if not 0.0 < settings.sample <= 1.0:
        raise UserError(f"--sample {settings.sample:g} is no fraction of requests; give one above 0, at most 1")
    if max_lag is not None and settings.source is None:
        raise UserError(f"--max-lag is of a published folder, and {folder} has no {CURRENT}; leave it out")
    if unix is not None and (host is not None or port is not None):
        raise UserError("--unix PATH is instead of --host and --port; give one or the other")
    _check(settings)
    with _bound(settings, host or "127.0.0.1", 8000 if port is None else port, unix) as listener:
        if settings.source is not None or not is_saved(Path(folder)):
            _run(settings, listener, host, workers)
            return
        import msgspec

        with exported(Path(folder)) as model:
            _run(msgspec.structs.replace(settings, folder=str(model)), listener, host, workers)


def _check(settings: "ServerSettings") -> None:
    """Raise UserError for what can be known to be wrong before there is a model."""
    from importlib.util import find_spec

    from persia_cli.errors import UserError
    from persia_cli.serving.http.admission import read_token
    from persia_cli.serving.http.listening import require_certificate

    for name in ("onnxruntime", "uvloop"):
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed; pip install 'persia-cli[serve]'")
    if settings.tls is not None:
        require_certificate(*map(Path, settings.tls))
    if settings.token_file is not None:
        read_token(Path(settings.token_file))
    if settings.log is not None:
        from persia_cli.serving.http.log_files import prepare_folder

        prepare_folder(Path(settings.log))


@contextmanager
def _bound(settings: "ServerSettings", host: str, port: int, unix: Path | None) -> "Iterator[socket]":
    """Yield the socket of the server; raises UserError."""
    from persia_cli.serving.http.listening import bound, bound_to_path

    if unix is None:
        with bound(host, port, settings.token_file is not None or settings.tls is not None) as listener:
            yield listener
        return
    with bound_to_path(unix.absolute()) as listener:
        try:
            yield listener
        finally:
            unix.unlink(missing_ok=True)


def _run(settings: "ServerSettings", listener: "socket", host: str | None, count: int | None) -> None:
    import logging
    import sys

    import msgspec

    from persia_cli.cgroups import processors
    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import count as counted
    from persia_cli.serving.description import read_description, require_files
    from persia_cli.serving.http.listening import is_loopback
    from persia_cli.serving.http.processes import serve

    if settings.source is None:
        folder = Path(settings.folder)
        require_files(folder, read_description(folder).files, contents=False)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    number = count or processors()
    address = listener.getsockname()
    is_near = not isinstance(address, str) and is_loopback(address[0])
    settings = msgspec.structs.replace(settings, host=host or address[0], is_near=is_near)

    def on_ready(model: str) -> None:
        place = _place(settings, address, host)
        labelled(err(), "serving", f"{model}, at {place}, by {counted(number, 'worker')}")
        if settings.source is not None:
            labelled(err(), "following", f"{settings.source}, version after version")
        if settings.log is not None:
            labelled(err(), "logging", f"{settings.sample:g} of the requests, in {settings.log}")
        labelled(err(), "open to", _who(settings, address))

    counts = serve(settings, listener, number, on_ready)
    if settings.log is not None:
        missed = f"; {counts.missed:,} more are not, as the log above says" if counts.missed else ""
        labelled(err(), "logged", f"{counted(counts.logged, 'request')} in {settings.log}{missed}")


def _place(settings: "ServerSettings", address: Any, host: str | None) -> str:
    """Return the URL of the server, or the path of its socket."""
    scheme = "http" if settings.tls is None else "https"
    if isinstance(address, str):
        return f"{scheme}+unix:{address}"
    host = host or address[0]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{address[1]}"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _who(settings: "ServerSettings", address: Any) -> str:
    """Return as text which clients can send requests."""
    known = " and has the token" if settings.token_file is not None else ""
    if isinstance(address, str):
        return f"programs that may write to {address}{known}"
    if settings.is_near:
        return f"this machine alone{known}"
    seen = "encrypted" if settings.tls is not None else "not encrypted"
    return f"every client that reaches this machine{known}; {seen}"
