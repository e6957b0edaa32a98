"""`persia dashboard`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia dashboard                                          # runs and sweeps here, at http://127.0.0.1:8600",
    "persia dashboard sweeps/lr-20261121-0815                  # one sweep",
    "persia dashboard /shared --host 0.0.0.0 --token-file key  # for others, who must know the token in this file",
)


def dashboard(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder of runs and sweeps, or of such folders.", show_default="here"),
    ] = Path(),
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDR", help="Address to listen at. One that other machines reach needs --token-file."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8600,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE",
            help="File with a secret, which the browser asks for as password.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Show runs and sweeps on a local web page, live: curves, comparison, logs.

    It reads the folder and writes nothing.
    """
    from persia_cli.commands.screen import err, labelled
    from persia_cli.dashboard.app import server_of
    from persia_cli.dashboard.folder import Folder
    from persia_cli.serving.http.admission import TokenFile
    from persia_cli.serving.http.listening import TOKEN, bound

    token = None if token_file is None else TokenFile(token_file)
    server = server_of(Folder(folder), token, host)
    with bound(host, port, token is not None, TOKEN) as listener:
        address, at = listener.getsockname()[:2]
        labelled(err(), "dashboard", f"http://{f'[{address}]' if ':' in address else address}:{at}  (Ctrl-C ends it)")
        server.run(sockets=[listener])
