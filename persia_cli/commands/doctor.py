"""`persia doctor`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, examples

EXAMPLES = examples(
    "persia doctor             # this machine, in a few seconds",
    "persia doctor /data/runs  # with the disk of these runs",
)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of runs, whose disk is measured.")]


def doctor(folder: Folder = Path("runs"), as_json: AsJson = False) -> None:
    """Check what this machine offers to training, with advice.

    Processors, memory, limits, libraries, GPUs, and the speeds of memory and disk, as a container may use them. Exit
    code 1: something prevents training.
    """
    from persia_cli.commands.screen import out, paragraph, say_json
    from persia_cli.doctor.examination import examine
    from persia_cli.errors import PersiaError

    findings = {}
    for name, finding in examine(folder):
        findings[name] = {"level": finding.level, "text": finding.text, "advice": finding.advice} | finding.values
        if not as_json:
            paragraph(out(), finding.text, f"{finding.level:<8}{name:<15}")
        if finding.advice and not as_json:
            paragraph(out(), finding.advice, f"{'':<8}{'do':<15}")
    prevented = any(finding["level"] == "error" for finding in findings.values())
    if as_json:
        say_json({"trains": not prevented, "findings": findings})
    if prevented:
        raise typer.Exit(PersiaError.exit_code)
