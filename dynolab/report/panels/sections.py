"""The report's numbers and tables: headline, verdicts, replay, kinds, stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import ProbeRow
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Html, Tile, excerpt, section, table, text
from dynolab.report.panels.paths import Paths
from dynolab.report.panels.verdict_table import PLURAL, counts_of, verdict_table
from dynolab.report.style import (
    in_order,
    mean_and_ends,
    number,
    objective_name,
    style_of,
)
from dynolab.results.study import ARGMAX, ReplayFacts
from dynolab.statistics import Interval

_HEADLINES = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*", "gap": "gap y* − y⁺"}


def headline_tiles(
    stages: Sequence[str],
    changes: Mapping[str, Interval],
    summary: dict[str, Any],
    verdicts: Sequence[Verdict],
) -> list[Tile]:
    """The changes that a reader wants first, the force check and the claims."""
    found = [
        _change_tile(f"{objective_name(stage)}: {_HEADLINES[kind]}", changes.get(f"{stage}/{kind}"))
        for stage in stages
        for kind in (("chosen", "gap") if stage.startswith("sft") else _HEADLINES)
    ]
    found.append(_force_tile(stages, summary["metrics"]))
    judged = [v for v in verdicts if v.outcome != "not measured"]
    appear = sum(v.outcome == "holds" for v in judged)
    rest = counts_of([v for v in judged if v.outcome != "holds"], PLURAL)
    claims = rest or ("all that were measured" if judged else "none was measured")
    found.append(Tile("Claims that appear", f"{appear} of {len(judged)}", claims))
    return found


def _change_tile(what: str, change: Interval | None) -> Tile:
    if change is None:
        return Tile(what, "–", "not measured")
    mean, low, high = mean_and_ends(change)
    return Tile(what, mean, f"nats [{low}, {high}], n = {change.n}")


def _force_tile(stages: Sequence[str], metrics: dict[str, float]) -> Tile:
    left = {
        stage: metrics[f"force/{stage}/unexplained"]
        for stage in stages
        if f"force/{stage}/unexplained" in metrics
    }
    if not left:
        return Tile("Unexplained by forces", "–", "not measured")
    each = ", ".join(f"{objective_name(stage)} {number(value, 2)}" for stage, value in left.items())
    return Tile("Unexplained by forces", f"≤ {number(max(left.values()), 2)}", f"1 − R²: {each}")


_CLAIMS = (
    "Claims on chosen, rejected and unrelated answers follow Ren & Sutherland, Learning "
    "Dynamics of LLM Finetuning (arXiv 2407.10490), on training prompts: made of SFT and DPO, and "
    "judged of their relatives too; those on forces check the analysis, on all prompts that it "
    "watched. Appears: every interval lies on the expected side; does not: one lies wholly on the "
    "other side; unclear: neither. A peak's step is chosen on the other half of the prompts, so "
    "that noise makes no peak."
)


def verdict_section(verdicts: Sequence[Verdict], note: str = _CLAIMS) -> Html:
    """Claim, expectation, measurement and verdict; `note` says whose claims they are."""
    message = counts_of(verdicts, PLURAL)
    return section(
        "verdicts",
        "Which known phenomena appear",
        f"Of {len(verdicts)} claims {message}."
        if verdicts
        else "No claim is known of these trainings.",
        verdict_table("stage", verdicts, named=objective_name),
        note=note,
    )


def replay_section(rows: Sequence[ReplayFacts]) -> Html:
    """Whether the analysed updates are the ones that training made."""
    if not rows:
        return section("replay", "Replay check", "No recorded step was replayed.")
    replay = max(rows, key=lambda row: row.replay_error)
    closure = max(rows, key=lambda row: row.closure_error)
    return section(
        "replay",
        "Replay check",
        f"{len(rows)} recorded updates were computed again from their records. As far as the "
        f"watched answers feel it, the parts differ from the update by at most "
        f"{number(closure.closure_error, 2)} ({_where(closure)}), over all weights by at most "
        f"{number(replay.replay_error, 2)} ({_where(replay)}), each relative.",
        table(
            (
                "stage",
                "step",
                "learning rate",
                "gradient norm",
                "clip factor",
                "replay error",
                "rounding floor",
                "closure error",
            ),
            [
                (
                    objective_name(row.stage),
                    row.step,
                    number(row.learning_rate),
                    number(row.grad_norm),
                    number(row.clip_factor),
                    number(row.replay_error, 2),
                    number(row.rounding_floor, 2),
                    number(row.closure_error, 2),
                )
                for row in rows
            ],
            numeric="snnnnnnn",
        ),
        note="Where the replay error is near the rounding floor, which storing the weights leaves "
        "in a perfect replay, the replay is exact. Where it is far above with a small closure "
        "error, it sits in weights that no answer feels (such as GPT-NeoX's key biases under "
        "AdamW). Only a large closure error would mean that the forces split another update.",
    )


def _where(row: ReplayFacts) -> str:
    return f"{objective_name(row.stage)} step {row.step}"


def kind_section(paths: Paths, watched: Sequence[ProbeRow]) -> Html:
    """What every kind of answer is, with one prompt's answers of all kinds."""
    kinds = in_order({kind for found in paths.values() for kind in found.logp})
    made: dict[str, dict[str, None]] = {}
    for row in watched:
        made.setdefault(row.kind, {})[row.made_by] = None
    made[ARGMAX] = {"the model's likeliest token at every position along the chosen answer": None}
    example = {
        row.kind: excerpt(row.response) for row in watched if row.pair_id == watched[0].pair_id
    }
    prompt = f" The examples answer “{excerpt(watched[0].prompt, end=True)}”." if watched else ""
    return section(
        "kinds",
        "The kinds of answers",
        f"{len(kinds)} kinds of answers were watched.{prompt}",
        table(
            ("kind", "how it was made", "example"),
            [
                (
                    Html(style_of(kind).label),
                    "; ".join(made.get(kind, ())) or "not told",
                    example.get(kind, "–"),
                )
                for kind in kinds
            ],
        ),
    )


def stage_section(stages: Sequence[StageFacts]) -> Html:
    """The stages that the report was made from, with their keys."""
    seconds = sum(stage.seconds or 0.0 for stage in stages)
    message = (
        f"This page was made from {len(stages)} stages, which took {seconds:.0f} s to compute."
        if stages
        else "The stages were not told."
    )
    rows = [
        (
            stage.stage,
            Html(f"<code>{text(stage.key[:16])}{'…' if len(stage.key) > 16 else ''}</code>"),
            "–" if stage.seconds is None else f"{stage.seconds:.1f}",
            Html(f"<code>{text(stage.mlflow_run_id)}</code>") if stage.mlflow_run_id else "–",
        )
        for stage in stages
    ]
    head = ("stage", "key", "seconds", "MLflow run")
    note = (
        "Seconds are those of the computation, whether made for this page or taken from the store."
    )
    return section("stages", "Stages", message, table(head, rows, "ssns"), note=note)
