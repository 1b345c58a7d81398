"""Names a pair by its id, with its texts where a reader points at it."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from dynolab.data.rows import Example
from dynolab.report.text import excerpt

_NAMED = Markup('<abbr class="num" title="{}">{}</abbr>').format
_ID, _TEXT = 24, 200  # characters


def named_pair(name: str, rows: Mapping[str, Example]) -> Markup:
    """The id; its prompt and answers are the tooltip."""
    row = rows.get(name)
    if row is None:
        return Markup('<span class="num">{}</span>').format(excerpt(name, _ID))
    texts = {"prompt": row.prompt, "chosen": row.chosen, "rejected": row.rejected or ""}
    shown = [
        f"{kind}: {excerpt(text, _TEXT, end=kind == 'prompt')}"
        for kind, text in texts.items()
        if text
    ]
    return _NAMED("\n".join(shown), excerpt(name, _ID))
