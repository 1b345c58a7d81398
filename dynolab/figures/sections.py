"""The report's numbers and tables: headline, verdicts, replay, kinds, stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynolab.figures.inputs import ReplayRow, ReportInputs
from dynolab.figures.intervals import Interval
from dynolab.figures.page import Html, Tile, link, section, table, text
from dynolab.figures.paths import Paths
from dynolab.figures.style import in_order, mean_and_ends, number, style_of, with_interval
from dynolab.figures.verdicts import Verdict

_MARKS = {"appears": "✓", "does not": "✗", "unclear": "?", "not measured": "–"}


def headline_tiles(
    changes: Mapping[str, Interval], summary: dict[str, Any], verdicts: Sequence[Verdict]
) -> list[Tile]:
    """The changes that a reader wants first, the force check and the claims."""
    found = []
    for key, what in (
        ("sft/chosen", "SFT: chosen"),
        ("dpo/chosen", "DPO: chosen"),
        ("dpo/rejected", "DPO: rejected"),
        ("dpo/argmax", "DPO: y*"),
        ("sft/gap", "SFT: gap y* − chosen"),
        ("dpo/gap", "DPO: gap y* − chosen"),
    ):
        found.append(_change_tile(what, changes.get(key)))
    found.append(_force_tile(summary["metrics"]))
    judged = [v for v in verdicts if v.outcome != "not measured"]
    appear = sum(v.outcome == "appears" for v in judged)
    others = {o: sum(v.outcome == o for v in judged) for o in ("does not", "unclear")}
    detail = ", ".join(f"{n} {'do not' if o == 'does not' else o}" for o, n in others.items() if n)
    found.append(Tile("Claims that appear", f"{appear} of {len(judged)}", detail or "all of them"))
    return found


def _change_tile(what: str, change: Interval | None) -> Tile:
    if change is None:
        return Tile(what, "–", "not measured")
    mean, low, high = mean_and_ends(change)
    return Tile(what, mean, f"nats [{low}, {high}], n = {change.n}")


def _force_tile(metrics: dict[str, float]) -> Tile:
    stages = [stage for stage in ("sft", "dpo") if f"force/{stage}/r2" in metrics]
    value = " / ".join(number(metrics[f"force/{stage}/r2"]) for stage in stages)
    detail = " / ".join(stage.upper() for stage in stages)
    if "force/replay_error" in metrics:
        detail += f"; updates replay to {number(metrics['force/replay_error'], 2)}"
    return Tile("Forces explain (R²)", value or "–", detail or "not measured")


def verdict_section(verdicts: Sequence[Verdict]) -> Html:
    """Claim, expectation, measurement and verdict."""
    counts = {mark: sum(v.outcome == mark for v in verdicts) for mark in _MARKS}
    words = {"appears": "appear", "does not": "do not"}
    message = ", ".join(f"{n} {words.get(o, o)}" for o, n in counts.items() if n)
    rows = [
        (
            verdict.stage.upper(),
            verdict.claim,
            verdict.expected,
            _quantities(verdict),
            min((q.interval.n for q in verdict.quantities), default=0) or "–",
            Html(
                f'<span class="verdict {verdict.outcome.replace(" ", "-")}">'
                f"{_MARKS[verdict.outcome]} {verdict.outcome}</span>"
            ),
        )
        for verdict in verdicts
    ]
    return section(
        "verdicts",
        "Which known phenomena appear",
        f"Of {len(verdicts)} claims {message}.",
        table(("stage", "claim", "expected", "measured [95%]", "n", "verdict"), rows, "ssssns"),
        note="Claims of Ren & Sutherland, Learning Dynamics of LLM Finetuning (arXiv 2407.10490), "
        "on training prompts; forces on all that were watched. Appears: every interval lies on the "
        "expected side; does not: one "
        "lies wholly on the other side; unclear: neither. A peak's step is chosen on the other "
        "half of the prompts, so that noise makes no peak.",
    )


def _quantities(verdict: Verdict) -> Html:
    if verdict.outcome == "not measured":
        return Html('<span class="quiet">not among what was measured</span>')
    return Html(
        "".join(
            f'<div><span class="quiet">{text(q.name)}</span> <span class="num">'
            f"{with_interval(q.interval, sign=bool(q.unit))} {text(q.unit)}</span></div>"
            for q in verdict.quantities
        )
    )


def replay_section(rows: Sequence[ReplayRow]) -> Html:
    """Whether the analysed updates are the ones that training made."""
    if not rows:
        return section("replay", "Replay check", "No recorded step was replayed.")
    worst = max(rows, key=lambda row: row.replay_error)
    return section(
        "replay",
        "Replay check",
        f"Computing {len(rows)} recorded updates again from their records gives the same change "
        f"of the weights up to {number(worst.replay_error, 2)} (relative), at worst at "
        f"{worst.stage.upper()} step {worst.step}.",
        table(
            ("stage", "step", "learning rate", "gradient norm", "clip factor", "replay error"),
            [
                (
                    row.stage.upper(),
                    row.step,
                    number(row.learning_rate),
                    number(row.grad_norm),
                    number(row.clip_factor),
                    number(row.replay_error, 2),
                )
                for row in rows
            ],
            numeric="snnnnn",
        ),
        note="The forces above split these very updates; a large error would mean that they "
        "split something else.",
    )


def kind_section(paths: Paths) -> Html:
    """What every kind of answer is."""
    kinds = in_order({kind for found in paths.values() for kind in found.logp})
    return section(
        "kinds",
        "The kinds of answers",
        f"{len(kinds)} kinds of answers were watched.",
        table(
            ("kind", "what it is"),
            [(Html(style_of(k).label), style_of(k).meaning or "of the study's own") for k in kinds],
        ),
    )


def stage_section(inputs: ReportInputs) -> Html:
    """The stages that were run, with keys and links."""
    stages = inputs.facts.stages
    cached = sum(stage.cached for stage in stages)
    seconds = sum(stage.seconds or 0.0 for stage in stages if not stage.cached)
    message = (
        f"{len(stages)} stages, {cached} of them from the store; the others took {seconds:.0f} s."
        if stages
        else "The stages were not told."
    )
    rows = [
        (
            stage.stage,
            Html(f"<code>{text(stage.key[:16])}{'…' if len(stage.key) > 16 else ''}</code>"),
            "from the store" if stage.cached else "computed",
            "–" if stage.seconds is None else f"{stage.seconds:.1f}",
            link("MLflow run", stage.mlflow_url),
        )
        for stage in stages
    ]
    head = ("stage", "key", "result", "seconds", "tracking")
    return section("stages", "Stages", message, table(head, rows, "sssns"))
