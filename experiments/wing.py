"""What this wing brings to the platform: its flows and their commands (`flows.registry.Wing`)."""

from __future__ import annotations

import typer

from flows.entry import COMPARE, FORCES, Entry

CHAPTERS = {
    "squeezing": "Show where pushed-down probability goes, in one softmax and in a model.",
    "coupling": "Check whether the same answers stay coupled, over learning rates and under DPO.",
    "simplicity": "Compare which mappings from objects to messages are learned fast, and why.",
    "classification": "Measure which image pushes which, and how every example is learned.",
    "supervision": "Compare what to teach when labels are wrong, and what is learned faster.",
    "transfer": "Compare ways to prepare a task head before full finetuning.",
}
"""The chapters: what `dynolab chapter NAME` runs."""

FLOWS = {
    "counterfactual": Entry(
        "Train without some pairs, and compare with the ledger's forecast.",
        "experiments.counterfactual.flow",
        FORCES,
        tag="compare",
    ),
    "reproduce": Entry(
        "Check which of the papers' findings on finetuning a model and data show.",
        "experiments.reproduce.flow",
        tag="compare",
    ),
} | {
    name: Entry(about, "experiments.chapters.flows", tag="chapter", listed=f"~chapter-{name}")
    for name, about in CHAPTERS.items()
}


def add_commands(app: typer.Typer) -> None:
    """Adds `dynolab reproduce` and `dynolab chapter NAME`."""
    from experiments.reproduce.command import reproduce
    from flows.options import flow_command

    app.command(help=FLOWS["reproduce"].about, rich_help_panel=COMPARE)(reproduce)
    chapter = typer.Typer(no_args_is_help=True)
    app.add_typer(
        chapter,
        name="chapter",
        help="Run a chapter beyond finetuning: classifiers, transfer, simplicity, squeezing …",
        rich_help_panel=COMPARE,
    )
    for name, about in CHAPTERS.items():
        chapter.command(name, help=about)(flow_command(name))
        app.command(name, help=about, hidden=True)(flow_command(name))  # its name until 0.2
