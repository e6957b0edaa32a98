"""The end of a job that is no error."""

from persia_cli.errors import PersiaError


class OrderlyEndError(PersiaError):
    """The end of a command without an error: its job was stopped, had been finished, or goes on without the command.

    The text has what is saved and how to continue.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code
