"""The page of a comparison of policies: whose answers judges prefer, and how far they agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

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
from dynolab.results.judges import Agreement, Judgement, PolicyAnswer, WinRate
from dynolab.results.study import rows as stage_rows
from dynolab.statistics import Interval

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
        return [
            rate
            for policy in self.policies
            for judged in self.judged.values()
            for rate in judged.rates
            if rate.a == policy
        ]

    @cached_property
    def agreements(self) -> tuple[Agreement, ...]:
        """Agreement of every two judges on every policy for which both have verdicts."""
        every = (
            agreement(self._of(first, policy), self._of(second, policy))
            for policy in self.policies
            for first, second in combinations(self.judged, 2)
        )
        return tuple(agreed for agreed in every if agreed is not None)

    def _of(self, judge: str, policy: str) -> list[Judgement]:
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
    rates, counts = inputs.rates, [rate.counts.model_dump() for rate in inputs.rates]
    clear = [rate for rate in rates if rate.low > 0.5 or rate.high < 0.5]
    best = max((rate for rate in clear if rate.low > 0.5), key=lambda own: own.rate, default=None)
    words = Words(
        "judges.html",
        inputs=inputs,
        answers=inputs.answers[inputs.baseline],
        clear=clear,
        biased=[rate for rate in rates if rate.first.low > 0.5 or rate.first.high < 0.5],
        shown=min(SHOWN, len(inputs.answers[inputs.baseline])),
    )
    won = {
        policy: {rate.judge: rate.interval for rate in rates if rate.a == policy and rate.judged}
        for policy in inputs.policies
    }
    values = {run: [{name: own.mean for name, own in of.items()}] for run, of in won.items()} | {
        inputs.baseline: [dict.fromkeys(inputs.judged, 0.5)]
    }
    panel = DotPanel("Win rate", "share of prompts", {name: name for name in inputs.judged}, ".0%")
    plot = forest_plot(ArmTable(values, won), inputs.policies, [panel], inputs.baseline)
    missing = Counter(
        (verdict.judge, verdict.outcome, verdict.said)
        for judged in inputs.judged.values()
        for verdict in judged.judgements
        if not verdict.parsed
    )
    agreements = [
        (
            f"{row.first} and {row.second}",
            row.a,
            f"{100 * row.share:.1f}",
            with_interval(Interval(row.kappa, row.kappa_low, row.kappa_high, row.prompts), False),
            row.prompts,
        )
        for row in inputs.agreements
    ]
    page = words.page(
        inputs.name,
        content=[
            words.section(
                "rates",
                table(_RATES, [_rate_row(rate, rate is best) for rate in rates], "ss" + "n" * 9),
            ),
            words.figure("win-rates", plot),
            words.section(
                "agreement",
                table(("judges", "policy", "same, %", "κ [95%]", "prompts"), agreements, "ssnnn"),
            ),
            words.section(
                "missing",
                table(
                    ("judge", "outcome", "response", "times"),
                    [(*said, times) for said, times in missing.most_common(10)],
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
    metrics = {f"win_rate/{rate.a}/{rate.judge}": rate.rate for rate in rates} | {
        f"first_share/{rate.a}/{rate.judge}": rate.first_share for rate in rates
    }
    for row in inputs.agreements:
        judges = f"{row.a}/{row.first}-{row.second}"
        metrics |= {f"agreement/{judges}": row.share, f"kappa/{judges}": row.kappa}
    metrics |= {f"verdicts/{name}": float(sum(of[name] for of in counts)) for name in counts[0]}
    summary = {
        "comparison": inputs.name,
        "baseline": inputs.baseline,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "rates": [
            {"policy": rate.a, "judge": rate.judge, **rate.interval.as_dict()} for rate in rates
        ],
    }
    return write_summary(summary, folder)


def _rate_row(rate: WinRate, best: bool) -> tuple[object, ...]:
    whole = rate.judged == rate.prompts
    return (
        run_name(rate.a, best),
        rate.judge,
        points(rate.interval, sign=False),
        rate.wins,
        rate.ties,
        rate.losses,
        f"{rate.judged} of {rate.prompts}",
        "–" if whole else f"{100 * rate.lowest:.1f} – {100 * rate.highest:.1f}",
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
    verdicts = {
        (judge, policy, prompt): str(preferred(both))
        for judge, judged in inputs.judged.items()
        for policy in inputs.policies
        for prompt, both in both_orders([v for v in judged.judgements if v.a == policy]).items()
    }
    answers = {
        policy: {answer.id: answer for answer in own} for policy, own in inputs.answers.items()
    }
    prompts = answers[inputs.baseline]

    def of(policy: str, prompt: str) -> dict[str, str]:
        keys = ((judge, policy, prompt) for judge in inputs.judged)
        return {key[0]: verdicts[key] for key in keys if key in verdicts}

    contradicted = {
        prompt: sum({"a", "b"} <= set(of(own, prompt).values()) for own in inputs.policies)
        for prompt in prompts
    }
    rows = [
        (
            excerpt(prompts[prompt].prompt, end=True),
            _cell(prompts[prompt], {}),
            *(_cell(answers[own][prompt], of(own, prompt)) for own in inputs.policies),
        )
        for prompt in sorted(prompts, key=contradicted.__getitem__, reverse=True)[:SHOWN]
    ]
    return words.section("prompts", table(("prompt", inputs.baseline, *inputs.policies), rows))


def _cell(answer: PolicyAnswer, verdicts: Mapping[str, str]) -> Markup:
    """An answer, and each judge's verdict on it."""
    mark = Markup('<span class="quiet">{}</span> <span class="{}">{}</span>')
    marks = [mark.format(judge, *_MARKS[verdict]) for judge, verdict in verdicts.items()]
    text = (excerpt(answer.answer) or "(nothing)") + ("" if answer.finished else " …")
    return Markup("<div>{}</div><div><small>{}</small></div>").format(
        text, Markup(" · ").join(marks)
    )
