"""What the manual takes from the code at each build: settings, commands, notebooks, reports."""

from __future__ import annotations

import json
import os
import shutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pictures
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.main import get_command

from flows.cli import app
from flows.registry import FLOWS, load_flow

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def everything(docs: Path) -> None:
    """Writes the generated parts into `_build/generated`, and whole files into `_build/extra`."""
    parts, extra = docs / "_build" / "generated", docs / "_build" / "extra"
    shutil.rmtree(extra, ignore_errors=True)
    for folder in (parts, extra / "reports", extra / "notebooks"):
        folder.mkdir(parents=True, exist_ok=True)
    wings(docs / "wings")
    texts = {
        "settings.md": settings(),
        "commands.md": commands(),
        "notebooks.md": notebooks(extra / "notebooks"),
        "reports.md": reports(extra / "reports"),
        "findings.md": findings("README.md"),
        "by-study.md": findings("BY_STUDY.md"),
        **pictures.all_pictures(),
    }
    for name, text in texts.items():
        file = parts / name
        if not file.exists() or file.read_text() != text:  # an unchanged page is not built again
            file.write_text(text)


# Settings ---------------------------------------------------------------------------------------


def settings() -> str:
    """Every flow's settings, then those of their parts, each once."""
    tops = {name: load_flow(name).parameters for name in FLOWS}
    parts: dict[str, type[BaseModel]] = {}
    lines = ["## By command", ""]
    for name, kind in tops.items():
        lines += [f"### `{name}`", "", FLOWS[name], "", *_table(kind), ""]
        for part in _parts(kind):
            parts.setdefault(part.__name__, part)
    lines += ["## Parts", "", "Settings that stand below another one, such as `preference.steps`."]
    for name, kind in sorted(parts.items()):
        if kind not in tops.values():
            lines += ["", f"({_anchor(kind)})=", f"### {name}", "", _first(kind), "", *_table(kind)]
    return "\n".join(lines) + "\n"


def _table(kind: type[BaseModel]) -> list[str]:
    rows = [
        f"| `{name}` | {_kind(field.annotation)}{_bounds(field)} | {_default(field)} "
        f"| {_cell(field.description or '')} |"
        for name, field in kind.model_fields.items()
    ]
    return ["| setting | values | default | meaning |", "|---|---|---|---|", *rows]


def _parts(kind: Any) -> Iterator[type[BaseModel]]:
    """Every class of settings below a class, in the order of their fields."""
    for field in kind.model_fields.values():
        for part in _classes(field.annotation):
            yield part
            yield from _parts(part)


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        if get_origin(annotation) is not Literal:
            yield from _classes(inner)


def _kind(annotation: Any) -> str:
    """A type in words, with links to the parts."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in inner))
    if origin in (tuple, list, frozenset, set):
        kinds = dict.fromkeys(_kind(part) for part in inner if part is not Ellipsis)
        return "list of " + ", ".join(kinds)
    if origin is dict:
        return f"{_kind(inner[1])}, by name"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{_anchor(annotation)})"
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true, false"}
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, name)


def _bounds(field: FieldInfo) -> str:
    found = [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(bound, name)
    ]
    return " " + ", ".join(found) if found else ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "*needed*"
    if isinstance(value, BaseModel) or (
        isinstance(value, dict) and any(isinstance(model, BaseModel) for model in value.values())
    ):
        return "its own" if isinstance(value, BaseModel) else f"{len(value)} of them"
    return f"`{json.dumps(value, ensure_ascii=False, default=str)}`"


def _first(kind: type[BaseModel]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(kind: type[BaseModel]) -> str:
    return f"settings-{kind.__name__.lower()}"


# Commands ---------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its help and options, as `--help` has them."""
    command_line: Any = get_command(app)
    lines: list[str] = []
    for name, command in command_line.commands.items():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["dynolab", name, *command.collect_usage_pieces(context)])
        lines += [f"### `{name}`", "", f"    {usage}", "", " ".join((command.help or "").split())]
        lines += ["", "| option | default | meaning |", "|---|---|---|"]
        for option in command.get_params(context):
            names = ", ".join(f"`{one}`" for one in option.opts)
            if option.param_type_name == "argument":
                names = f"`{option.metavar or option.name.upper()}`"
            shown = option.default is not None and not getattr(option, "is_flag", False)
            default = f"`{option.default}`" if shown else ""
            lines.append(f"| {names} | {default} | {_cell(getattr(option, 'help', '') or '')} |")
        lines.append("")
    return "\n".join(lines)


def findings(file: str) -> str:
    """A text of `deploy/studies`, with its links as a page of the manual has them."""
    text = (ROOT / "deploy" / "studies" / file).read_text()
    for own, page in {"README.md": "findings.md", "BY_STUDY.md": "by-study.md"}.items():
        text = text.replace(f"](./{own})", f"]({page})")
    return text.replace("](../", "](../deploy/").replace("](./", "](../deploy/studies/")


# Wings ------------------------------------------------------------------------------------------


def wings(folder: Path) -> None:
    """Copies the pages of wings, which are in `docs` of each, as pages of this manual."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pages = sorted(ROOT.glob("*/docs/*.md"))
    for page in pages:
        (folder / page.name).write_text(page.read_text().replace("](../../docs/", "](../"))
    if not pages:  # else the contents would be empty there, of which Sphinx warns
        (folder / "none.md").write_text("# None here\n\nThis checkout has the core alone.\n")


# Notebooks and reports --------------------------------------------------------------------------


def notebooks(folder: Path) -> str:
    """The notebooks of `examples` as text, each with its file beside the site."""
    lines: list[str] = []
    for file in sorted((ROOT / "examples").glob("*.ipynb")):
        shutil.copy(file, folder)
        for cell in json.loads(file.read_text())["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code":
                lines += ["```python", text, "```", ""]
                continue
            if text.startswith("# "):
                text = f'#{text}\n\n<a href="notebooks/{file.name}" download>{file.name}</a>'
            lines += [text, ""]
    return "\n".join(lines)


def reports(folder: Path) -> str:
    """Pages of this checkout's home, copied, as links; without any, how to make one."""
    home = Path(os.environ.get("DYNOLAB_HOME") or ROOT / ".dynolab")
    pages = sorted((home / "reports").glob("*.html"))
    for page in pages:
        shutil.copy(page, folder)
    if not pages:
        return "None yet: `make study && make docs` puts that of the built-in study here.\n"
    links = [f'- <a href="reports/{page.name}">{page.stem}</a>' for page in pages]
    return "\n".join(links) + "\n"
