"""The page of a comparison of policies: whose answers judges prefer, and how far they agree."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from operator import attrgetter
from pathlib import Path

import plotly.graph_objects as go
from markupsafe import Markup

from dynolab.comparisons.arm_table import ArmTable
from dynolab.data.rows import write_rows
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from dynolab.judges.win_rate import agreement, both_orders, preferred
from dynolab.report.inputs.study import PageInputs
from dynolab.report.page import Section, Words, table, write_page, write_summary
from dynolab.report.plots import DotPanel, forest_plot
from dynolab.report.style import excerpt, points, with_interval
from dynolab.report.tables import run_name
from dynolab.results.judges import Agreement, Judgement, JudgementCounts, PolicyAnswer, WinRate
from dynolab.results.study import rows as stage_rows
from dynolab.statistics import Interval, column

SHOWN = 24
"""Number of prompts on the page; the results have all of them."""

_MARKS = {"a": ("appears", "won"), "tie": ("not-measured", "tied"), "b": ("does-not", "lost")}
"""Style and word of a verdict on a policy's answer."""
_RATES = (
    "policy",
    "judge",
    "win rate, % [95%]",
    "won",
    "tied",
    "lost",
    "prompts judged",
    "possible range, %",
    "for the answer shown first, % [95%]",
    "orders disagree",
    "verdicts missing",
)


@dataclass(frozen=True)
class Judged:
    """One judge's verdicts, and their win rate of every policy over the baseline."""

    judgements: tuple[Judgement, ...]
    rates: tuple[WinRate, ...]


@dataclass(frozen=True)
class JudgePageInputs(PageInputs):
    """Everything the page shows; `answers`: by policy, the baseline last; `judged`: by judge."""

    baseline: str
    judges: Mapping[str, JudgeConfig]
    temperature: float
    answers: Mapping[str, tuple[PolicyAnswer, ...]]
    judged: Mapping[str, Judged]

    @property
    def policies(self) -> list[str]:
        """The policies that are compared with the baseline."""
        return [name for name in self.answers if name != self.baseline]

    @property
    def rates(self) -> list[WinRate]:
        """Every policy's win rates, judge by judge."""
        rates = [*chain(*(judged.rates for judged in self.judged.values()))]
        in_order = [rate for rate in rates if rate.a in self.policies]
        return sorted(in_order, key=lambda rate: self.policies.index(rate.a))

    @cached_property
    def agreements(self) -> tuple[Agreement, ...]:
        """Agreement of every two judges on every policy for which both have verdicts."""
        agreements = []
        for policy in self.policies:
            for first, second in combinations(self.judged, 2):
                agreed = agreement(self.verdicts(first, policy), self.verdicts(second, policy))
                if agreed is not None:
                    agreements.append(agreed)
        return tuple(agreements)

    def verdicts(self, judge: str, policy: str) -> list[Judgement]:
        """A judge's verdicts on a policy."""
        return [verdict for verdict in self.judged[judge].judgements if verdict.a == policy]


def read_policy_answers(folder: Path) -> tuple[PolicyAnswer, ...]:
    """Reads a policy's answers."""
    return stage_rows(folder, "answers.jsonl", PolicyAnswer)


def read_judged(folder: Path) -> Judged:
    """Reads the result of a judge stage."""
    return Judged(
        stage_rows(folder, "judgements.jsonl", Judgement),
        stage_rows(folder, "win_rates.jsonl", WinRate),
    )


def write_judge_page(inputs: JudgePageInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `judge.html`, `summary.json`, `agreements.jsonl`, and the figure.

    **Returns** the summary's flat, finite metrics.
    """
    rates = inputs.rates
    clear = [rate for rate in rates if rate.low > 0.5 or rate.high < 0.5]
    won = [rate for rate in clear if rate.low > 0.5]
    best = max(won, key=attrgetter("rate"), default=None)
    words = Words(
        "judges.html",
        inputs=inputs,
        answers=inputs.answers[inputs.baseline],
        clear=clear,
        biased=[rate for rate in rates if rate.first.low > 0.5 or rate.first.high < 0.5],
        shown=min(SHOWN, len(inputs.answers[inputs.baseline])),
    )
    missing: Counter[tuple[str, str, str]] = Counter()
    for judged in inputs.judged.values():
        for verdict in judged.judgements:
            if not verdict.parsed:
                missing[verdict.judge, verdict.outcome, verdict.said] += 1
    agreements = []
    for row in inputs.agreements:
        kappa = Interval(row.kappa, row.kappa_low, row.kappa_high, row.prompts)
        shares = f"{100 * row.share:.1f}", with_interval(kappa, sign=False)
        agreements.append((f"{row.first} and {row.second}", row.a, *shares, row.prompts))
    page = words.page(
        inputs.name,
        content=[
            words.section(
                "rates",
                table(
                    _RATES,
                    [_rate_row(rate, rate is best) for rate in rates],
                    "ss" + "n" * 9,
                    cards=True,
                ),
            ),
            words.figure("win-rates", _rate_plot(inputs)),
            words.section(
                "agreement",
                table(("judges", "policy", "same, %", "κ [95%]", "prompts"), agreements, "ssnnn"),
            ),
            words.section(
                "missing",
                table(
                    ("judge", "outcome", "response", "times"),
                    [(*verdict, times) for verdict, times in missing.most_common(10)],
                    "sssn",
                ),
            )
            if missing
            else None,
            words.section(
                "judges",
                table(
                    ("judge", "criterion"),
                    [(name, _criterion(judge)) for name, judge in inputs.judges.items()],
                ),
            ),
            prompt_section(inputs, words),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "judge.html")
    write_rows(folder / "agreements.jsonl", inputs.agreements)
    metrics: dict[str, float] = {}
    for rate in rates:
        metrics[f"win_rate/{rate.a}/{rate.judge}"] = rate.rate
        metrics[f"first_share/{rate.a}/{rate.judge}"] = rate.first_share
    for row in inputs.agreements:
        judges = f"{row.a}/{row.first}-{row.second}"
        metrics |= {f"agreement/{judges}": row.share, f"kappa/{judges}": row.kappa}
    counts = [rate.counts for rate in rates]
    for name in JudgementCounts.model_fields:
        metrics[f"verdicts/{name}"] = float(column(counts, name).sum())
    summary = {
        "comparison": inputs.name,
        "baseline": inputs.baseline,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "rates": [
            {"policy": rate.a, "judge": rate.judge, **rate.interval.as_dict()} for rate in rates
        ],
    }
    return write_summary(summary, folder)


def _rate_plot(inputs: JudgePageInputs) -> go.Figure:
    """Every policy's win rates, and the line at which it would be as good as the baseline."""
    values = {inputs.baseline: [dict.fromkeys(inputs.judged, 0.5)]}
    intervals: dict[str, dict[str, Interval]] = {}
    for policy in inputs.policies:
        measured = [rate for rate in inputs.rates if rate.a == policy and rate.judged]
        values[policy] = [{rate.judge: rate.rate for rate in measured}]
        intervals[policy] = {rate.judge: rate.interval for rate in measured}
    panel = DotPanel("Win rate", "share of prompts", {name: name for name in inputs.judged}, ".0%")
    return forest_plot(ArmTable(values, intervals), inputs.policies, [panel], inputs.baseline)


def _rate_row(rate: WinRate, best: bool) -> tuple[object, ...]:
    is_certain = rate.judged == rate.prompts
    return (
        run_name(rate.a, best),
        rate.judge,
        points(rate.interval, sign=False),
        rate.wins,
        rate.ties,
        rate.losses,
        f"{rate.judged} of {rate.prompts}",
        "–" if is_certain else f"{100 * rate.lowest:.1f} – {100 * rate.highest:.1f}",
        points(rate.first, sign=False),
        rate.flipped,
        f"{rate.counts.asked - rate.counts.parsed} of {rate.counts.asked}",
    )


def _criterion(judge: JudgeConfig) -> str:
    """What a judge goes by."""
    if isinstance(judge, ExactJudgeConfig):
        return " + ".join(f"{reward.weight:g} · {reward.name}" for reward in judge.rewards)
    if isinstance(judge, LogProbJudgeConfig):
        tied = f"; differences up to {judge.tie_nats:g} nats tie" if judge.tie_nats else ""
        return f"the reference model’s log π per token, which does not measure quality{tied}"
    return f"{judge.endpoint.model}, prompted with: {judge.criterion}"


def prompt_section(inputs: JudgePageInputs, words: Words) -> Section:
    """The answers side by side; prompts on which judges prefer different ones come first."""
    # By policy and prompt, every judge's verdict.
    verdicts: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    answers: dict[tuple[str, str], PolicyAnswer] = {}
    for policy, of_policy in inputs.answers.items():
        for answer in of_policy:
            answers[policy, answer.id] = answer
        for judge in inputs.judged:
            for prompt, pair in both_orders(inputs.verdicts(judge, policy)).items():
                verdicts[policy, prompt][judge] = preferred(pair)
    contradictions: Counter[str] = Counter()
    for answer in inputs.answers[inputs.baseline]:
        for policy in inputs.policies:
            by_judge = verdicts[policy, answer.id].values()
            contradictions[answer.id] += "a" in by_judge and "b" in by_judge
    rows = []
    for prompt, _ in contradictions.most_common(SHOWN):
        first = answers[inputs.baseline, prompt]
        cells = [
            _cell(answers[policy, prompt], verdicts[policy, prompt]) for policy in inputs.policies
        ]
        rows.append((excerpt(first.prompt, end=True), _cell(first, {}), *cells))
    return words.section("prompts", table(("prompt", inputs.baseline, *inputs.policies), rows))


def _cell(answer: PolicyAnswer, verdicts: Mapping[str, str]) -> Markup:
    """An answer, and each judge's verdict on it."""
    mark = Markup('<span class="quiet">{}</span> <span class="{}">{}</span>')
    marks = [mark.format(judge, *_MARKS[verdict]) for judge, verdict in verdicts.items()]
    text = (excerpt(answer.answer) or "(nothing)") + ("" if answer.finished else " …")
    return Markup("<div>{}</div><div><small>{}</small></div>").format(
        text, Markup(" · ").join(marks)
    )
