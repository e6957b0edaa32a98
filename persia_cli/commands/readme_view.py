"""A README on a terminal."""

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement
from rich.text import Text


class _PlainCode(CodeBlock):
    """Code without wrapping: a command that is longer than a line of the terminal can still be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip(), "bold", no_wrap=True, overflow="ignore")


class Readme(Markdown):
    """Markdown whose code blocks are not wrapped; to be printed without cropping."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements, "fence": _PlainCode, "code_block": _PlainCode
    }  # fmt: skip
