"""Hook of MkDocs: pages of the reference that are generated from the code, so that they cannot differ from it."""

from typing import TYPE_CHECKING

from scripts import reference_commands, reference_config, reference_journals, reference_messages, reference_networks

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PAGES = {
    "reference/configuration.md": reference_config.page,
    "reference/commands.md": reference_commands.page,
    "reference/journals.md": reference_journals.page,
    "reference/messages.md": reference_messages.page,
    **reference_networks.pages(),
}


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages to those of `docs/`."""
    # Here, since tests read PAGES without mkdocs.
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files
