"""Output of `persia eval --importance`: a table, a line of text for each feature, or JSON."""

from dataclasses import asdict

from persia_cli.commands.screen import err, key_values, labelled, out, say, say_json
from persia_cli.commands.screen_tables import columns, print_whole
from persia_cli.config.schema.metric import aim_of
from persia_cli.training.importance import Importance


def show_importance(found: Importance, as_json: bool) -> None:
    """Print all features, the most important one first: how much worse each metric is without it, and the error."""
    if as_json:
        say_json(asdict(found))
        return
    figures = ", ".join(f"{name} {value:.6f}" for name, value in found.metrics.items())
    labelled(err(), "model", f"{figures} on {found.samples:,} samples, before these exchange values")
    heads = []
    for name in found.metrics:
        heads += [f"{name} {'drop' if aim_of(name) == 'high' else 'rise'}", f"{name} error"]
    table = columns("feature", "kind", *heads)
    for each in found.features:
        losses = [value[name] for name in found.metrics for value in (each.worse, each.error)]
        if out().is_terminal:
            table.add_row(each.name, each.kind, *(f"{loss:.6f}" for loss in losses))
        else:
            names = (head.replace(" ", "_") for head in heads)
            say(out(), key_values({"feature": each.name, "kind": each.kind} | dict(zip(names, losses, strict=True))))
    if out().is_terminal:
        print_whole(out(), table)
