"""The tables of a comparison of policies: rates, verdicts, agreement, and the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from dynolab.judges.win_rate import both_orders, preferred
from dynolab.report.inputs.judges import JudgePageInputs
from dynolab.report.page import Section, section, table
from dynolab.report.text import excerpt, join, number, points, with_interval
from dynolab.results.judges import PolicyAnswer, WinRate
from dynolab.statistics import Interval

SHOWN = 24
"""Number of prompts on the page; the results have all of them."""

_MARKS = {"a": ("appears", "won"), "tie": ("not-measured", "tied"), "b": ("does-not", "lost")}
"""Style and word of a verdict on a policy's answer."""


def rate_section(inputs: JudgePageInputs) -> Section:
    """Every policy's win rate over the baseline by every judge."""
    rows = [
        (
            rate.a,
            rate.judge,
            points(rate.interval, sign=False),
            rate.wins,
            rate.ties,
            rate.losses,
            f"{rate.judged} of {rate.prompts}",
            "–"
            if rate.judged == rate.prompts
            else f"{100 * rate.lowest:.1f} – {100 * rate.highest:.1f}",
        )
        for rate in inputs.rates
    ]
    return section(
        "rates",
        f"Win rates over {inputs.baseline}",
        "Ties count half; 50% is as good as the baseline.",
        table(
            (
                "policy",
                "judge",
                "win rate, % [95%]",
                "won",
                "tied",
                "lost",
                "prompts judged",
                "possible range, %",
            ),
            rows,
            "ssnnnnnn",
        ),
        note="Every contest is judged in both orders, and a prompt counts if both have a "
        "verdict: its score is the mean of the two, so that a preference for the answer shown "
        "first cancels. Won, tied, lost: prompts. Brackets: 95% bootstrap over prompts; Wilson’s "
        "interval if all prompts have the same score. Last column: the lowest and the highest rate "
        "that the missing verdicts could have led to.",
    )


def count_section(inputs: JudgePageInputs) -> Section:
    """Counts all requested verdicts by outcome, and measures position bias."""
    rows = [
        (
            rate.judge,
            rate.a,
            rate.counts.asked,
            rate.counts.parsed,
            rate.counts.refused,
            rate.counts.unparsable,
            rate.counts.failed,
            points(rate.first, sign=False),
            f"{rate.flipped} of {rate.judged}",
        )
        for rate in inputs.rates
    ]
    asked, parsed = (
        sum(getattr(rate.counts, count) for rate in inputs.rates) for count in ("asked", "parsed")
    )
    return section(
        "verdicts",
        "Verdicts by outcome",
        f"{asked} verdicts were requested, {parsed} were received. {_bias(inputs.rates)}",
        table(
            (
                "judge",
                "policy",
                "asked",
                "parsed",
                "refused",
                "unparsable",
                "failed",
                "for the answer shown first, % [95%]",
                "flipped",
            ),
            rows,
            "ssnnnnnnn",
        ),
        *_missing_verdicts(inputs),
        note="Asked = parsed + refused + unparsable + failed. Failed: the endpoint returned "
        "nothing, or an answer has no score. For the answer shown first: share of verdicts, "
        "without ties; 50% is no position bias. Flipped: prompts on which the two orders "
        "contradict each other; they count as ties. A judge that scores each answer by itself has "
        "no position bias.",
    )


def _bias(rates: Sequence[WinRate]) -> str:
    biased = [rate for rate in rates if rate.first.low > 0.5 or rate.first.high < 0.5]
    if not biased:
        return "No judge shows a position bias."
    biases = [
        f"{rate.judge} prefers the answer shown {'first' if rate.first_share > 0.5 else 'second'} "
        f"({rate.a}: {100 * rate.first_share:.0f}% for the first)"
        for rate in biased
    ]
    return f"{join(biases)}."


def _missing_verdicts(inputs: JudgePageInputs) -> list[Markup]:
    """What judges answered instead of a verdict, the most frequent first."""
    missing = Counter(
        (verdict.judge, verdict.outcome, verdict.said)
        for judged in inputs.judged.values()
        for verdict in judged.judgements
        if not verdict.parsed
    )
    if not missing:
        return []
    rows = [(*answer, times) for answer, times in missing.most_common(10)]
    return [table(("judge", "outcome", "response", "times"), rows, "sssn")]


def agreement_section(inputs: JudgePageInputs) -> Section:
    """How far judges agree."""
    name, title = "agreement", "Whether judges agree"
    agreements = inputs.agreements
    if not agreements:
        return section(name, title, "No prompt was judged by two judges.")
    rows = [
        (
            f"{row.first} and {row.second}",
            row.a,
            f"{100 * row.share:.1f}",
            with_interval(Interval(row.kappa, row.kappa_low, row.kappa_high, row.prompts), False),
            row.prompts,
        )
        for row in agreements
    ]
    kappas = [
        f"{row.first} and {row.second} on {row.a} {number(row.kappa, 2)}" for row in agreements[:3]
    ]
    return section(
        name,
        title,
        f"Cohen’s κ, agreement beyond chance: {join(kappas)}.",
        table(("judges", "policy", "same verdict, %", "κ [95%]", "prompts"), rows, "ssnnn"),
        note="A judge’s verdict on a prompt combines both orders: won, tied or lost. "
        "κ is 1 if judges always agree, 0 if they agree as often as by chance, and "
        "undefined if both always give the same verdict. Brackets: 95% bootstrap over prompts.",
    )


def judge_section(inputs: JudgePageInputs) -> Section:
    """The judges and their criteria."""
    return section(
        "judges",
        "Who judges",
        f"{join(list(inputs.judges))}.",
        table(
            ("judge", "criterion"),
            [(name, _criterion(judge)) for name, judge in inputs.judges.items()],
        ),
    )


def _criterion(judge: JudgeConfig) -> str:
    if isinstance(judge, ExactJudgeConfig):
        parts = [f"{reward.weight:g} · {reward.name}" for reward in judge.rewards]
        return f"verifiable rewards, {' + '.join(parts)}; equal scores tie"
    if isinstance(judge, LogProbJudgeConfig):
        tie = f"; differences up to {judge.tie_nats:g} nats tie" if judge.tie_nats else ""
        return (
            "the reference model’s log-probability per token, end-of-sequence included: how likely "
            f"it finds an answer, which does not measure quality{tie}"
        )
    temperature = judge.endpoint.temperature
    sampled = "" if temperature is None else f" at temperature {temperature:g}"
    return f"the opinion of {judge.endpoint.model}{sampled}, prompted with: {judge.criterion}"


def prompt_section(inputs: JudgePageInputs) -> Section:
    """The answers side by side with the verdicts on them."""
    verdicts = _verdicts(inputs)
    answers = {
        policy: {answer.id: answer for answer in own} for policy, own in inputs.answers.items()
    }
    prompts = answers[inputs.baseline]

    def contradictions(prompt: str) -> int:
        by_policy = [
            {verdicts.get((judge, policy, prompt)) for judge in inputs.judged} - {None}
            for policy in inputs.policies
        ]
        return sum({"a", "b"} <= outcomes for outcomes in by_policy)

    order = sorted(prompts, key=contradictions, reverse=True)
    rows = [
        (
            excerpt(prompts[prompt].prompt, end=True),
            _answer(prompts[prompt]),
            *(
                _cell(
                    answers[policy][prompt],
                    {judge: verdicts.get((judge, policy, prompt)) for judge in inputs.judged},
                )
                for policy in inputs.policies
            ),
        )
        for prompt in order[:SHOWN]
    ]
    split = sum(contradictions(prompt) > 0 for prompt in prompts)
    return section(
        "prompts",
        "The answers and their verdicts",
        f"On {split} of {len(prompts)} prompts judges prefer different answers; these come first.",
        table(("prompt", inputs.baseline, *inputs.policies), rows),
        note=f"{min(SHOWN, len(prompts))} of {len(prompts)} prompts. Under an answer: each "
        f"judge’s verdict on it against {inputs.baseline}’s, over both orders; “…” marks an answer "
        "that was cut off.",
    )


def _verdicts(inputs: JudgePageInputs) -> dict[tuple[str, str, str], str]:
    """By judge, policy and prompt."""
    verdicts = {}
    for judge, judged in inputs.judged.items():
        for policy in inputs.policies:
            own = [verdict for verdict in judged.judgements if verdict.a == policy]
            for prompt, both in both_orders(own).items():
                verdicts[judge, policy, prompt] = str(preferred(both))
    return verdicts


def _answer(answer: PolicyAnswer) -> str:
    return (excerpt(answer.answer) or "(nothing)") + ("" if answer.finished else " …")


def _cell(answer: PolicyAnswer, verdicts: dict[str, str | None]) -> Markup:
    marks = Markup(" · ").join(
        Markup('<span class="quiet">{}</span> {}').format(judge, _mark(verdict))
        for judge, verdict in verdicts.items()
    )
    cell = Markup("<div>{}</div><div><small>{}</small></div>")
    return cell.format(_answer(answer), marks)


def _mark(verdict: str | None) -> str:
    if verdict is None:
        return "–"
    return Markup('<span class="{}">{}</span>').format(*_MARKS[verdict])
