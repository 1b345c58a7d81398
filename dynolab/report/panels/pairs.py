"""The pairs whose chosen answers fared worst under preference training."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from dynolab.report.page import Html, excerpt, section, table, text
from dynolab.report.style import number, objective_name
from dynolab.results.study import PairChange

_SHOWN = 10
_PROMPT = 90  # characters


def pair_section(pairs: Sequence[PairChange], stage: str, command: str = "") -> Html:
    """Changes of the worst pairs, one by one.

    **Arguments:** `pairs`: at least one, worst first; `stage`: the objective; `command`: the
    command line of a force map that lacks its pair.
    """
    worst, fell = pairs[0], sum(pair.chosen < 0 for pair in pairs)
    rows = [
        (
            pair.pair_id,
            "–" if pair.prompt is None else excerpt(pair.prompt, _PROMPT, end=True),
            *(
                number(value, sign=True)
                for value in (pair.chosen, pair.rejected, pair.margin, pair.gap)
            ),
        )
        for pair in pairs[:_SHOWN]
    ]
    head = ("pair", "prompt", "Δ log π chosen", "Δ log π rejected", "Δ margin", "Δ gap")
    return section(
        "pairs",
        "The pairs that fared worst",
        f"{objective_name(stage)} lowered the chosen answer of {fell} of {len(pairs)} watched "
        f"training pairs; that of “{excerpt(worst.pair_id)}” changed by "
        f"{number(worst.chosen, sign=True)} nats.",
        table(head, rows, "ssnnnn"),
        *([_how_to_map(worst.pair_id, command)] if command else []),
        note="Changes from start to end, nats; margin: chosen minus rejected; gap: y* minus "
        f"chosen, along the chosen answer. The worst {len(rows)} of {len(pairs)}; all are in "
        "pairs.jsonl beside this page and in MLflow’s table of this stage.",
    )


def _how_to_map(pair: str, command: str) -> Html:
    """The whole command for a pair; quoted, so that an id is never more than an id to a shell."""
    # Escapes stand for what cannot be seen, such as the end of a line.
    listed = json.dumps([pair], ensure_ascii=not pair.isprintable())
    chosen = shlex.quote(f"analysis.pair_ids={listed}")
    return Html(
        '<p class="note">Which of its tokens pushed which, before and after the training (for '
        "another pair put its id in place):</p>"
        f"<pre>{text(f'{command} --set {chosen}')}</pre>"
    )
