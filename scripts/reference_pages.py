"""Write the pages of the reference that are generated from the code: `python -m scripts.reference_pages`."""

from scripts import reference_commands, reference_config, reference_journals, reference_messages, reference_networks
from scripts.readme import ROOT

PAGES = {
    "reference/configuration.md": reference_config.page,
    "reference/commands.md": reference_commands.page,
    "reference/journals.md": reference_journals.page,
    "reference/messages.md": reference_messages.page,
    **reference_networks.pages(),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / "docs" / name).write_text(page(), encoding="utf-8")
