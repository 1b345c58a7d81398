"""What a shell offers after Tab where a command takes a study file."""

from __future__ import annotations

from pathlib import Path

import typer

from flows.registry import FLOWS


def studies(context: typer.Context, incomplete: str) -> list[str]:
    """Folders, study files, and the built-in studies of the command."""
    from flows.parameters import STUDIES

    typed = Path(incomplete)
    folder, begun = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    fitting = sorted(path for path in folder.glob("[!.]*") if path.name.startswith(begun))
    built_in = sorted(path.name for path in STUDIES.glob("*.yaml"))
    return [
        *(f"{path}/" for path in fitting if path.is_dir()),
        *(str(path) for path in fitting if path.suffix == ".yaml"),
        *(
            name
            for name in built_in
            if name.startswith(incomplete) and _command_of(name) == context.info_name
        ),
    ]


def _command_of(study: str) -> str:
    """The command that a built-in study is for, by its file's name."""
    return next((flow for flow in FLOWS if study.startswith(f"{flow}_")), "study")
