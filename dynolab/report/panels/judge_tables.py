"""The tables of a comparison of policies: rates, verdicts, agreement, and the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dynolab.judges.config import ExactJudgeConfig, JudgeConfig, LogProbJudgeConfig
from dynolab.judges.win_rate import both_orders, preferred
from dynolab.report.inputs.judges import JudgePageInputs
from dynolab.report.page import Html, excerpt, section, table, text
from dynolab.report.style import join, number, points, with_interval
from dynolab.results.judges import Judgement, PolicyAnswer, WinRate
from dynolab.statistics import Interval

SHOWN = 24
"""Prompts on the page; all of them are in the results."""

_WORDS = {"a": "won", "tie": "tied", "b": "lost"}
_CLASSES = {"a": "appears", "tie": "not-measured", "b": "does-not"}


def rate_section(inputs: JudgePageInputs) -> Html:
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
    head = (
        "policy",
        "judge",
        "win rate, % [95%]",
        "won",
        "tied",
        "lost",
        "prompts judged",
        "whatever the rest, %",
    )
    return section(
        "rates",
        f"Win rates over {inputs.baseline}",
        "Ties count half; 50% is as good as the baseline.",
        table(head, rows, "ssnnnnnn"),
        note="Every contest is judged in both orders, and a prompt counts where both have a "
        "verdict: it is worth the mean of the two, so that a liking for what stands first cancels. "
        "Won, tied, lost: prompts. Brackets: 95% bootstrap over prompts; Wilson’s interval where "
        "all prompts are worth the same. Last column: between which bounds the rate lies whatever "
        "the missing verdicts had been.",
    )


def count_section(inputs: JudgePageInputs) -> Html:
    """What became of every verdict that was asked for, and whether the place decides."""
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
        sum(getattr(rate.counts, what) for rate in inputs.rates) for what in ("asked", "parsed")
    )
    head = (
        "judge",
        "policy",
        "asked",
        "parsed",
        "refused",
        "unparsable",
        "failed",
        "for the first shown, % [95%]",
        "flipped",
    )
    return section(
        "verdicts",
        "What became of every verdict",
        f"{asked} verdicts were asked for, {parsed} came. {_bias(inputs.rates)}",
        table(head, rows, "ssnnnnnnn"),
        *_silences(inputs),
        note="Asked = parsed + refused + unparsable + failed. Failed: the endpoint gave nothing, "
        "or an answer has no score. For the first shown: share of verdicts, ties aside, for the "
        "answer that stood first; 50% is no liking for a place. Flipped: prompts on which the two "
        "orders contradict each other, and which count as ties. A judge who scores each answer by "
        "itself has no place to prefer.",
    )


def _bias(rates: Sequence[WinRate]) -> str:
    biased = [rate for rate in rates if rate.first.low > 0.5 or rate.first.high < 0.5]
    if not biased:
        return "No judge shows a liking for a place."
    told = [
        f"{rate.judge} prefers what stands {'first' if rate.first_share > 0.5 else 'second'} "
        f"({rate.a}: {100 * rate.first_share:.0f}% for the first shown)"
        for rate in biased
    ]
    return f"{join(told)}."


def _silences(inputs: JudgePageInputs) -> list[Html]:
    """What was said in place of a verdict, the most frequent first."""
    said = Counter(
        (one.judge, one.outcome, one.said)
        for judged in inputs.judged.values()
        for one in judged.judgements
        if not one.parsed
    )
    if not said:
        return []
    rows = [(*what, times) for what, times in said.most_common(10)]
    return [table(("judge", "no verdict", "what came", "times"), rows, "sssn")]


def agreement_section(inputs: JudgePageInputs) -> Html:
    """Whether judges say the same."""
    name, title = "agreement", "Whether judges agree"
    found = inputs.agreements
    if not found:
        return section(name, title, "No prompt was judged by two judges.")
    rows = [
        (
            f"{one.first} and {one.second}",
            one.a,
            f"{100 * one.share:.1f}",
            with_interval(Interval(one.kappa, one.kappa_low, one.kappa_high, one.prompts), False),
            one.prompts,
        )
        for one in found
    ]
    told = [f"{one.first} and {one.second} on {one.a} {number(one.kappa, 2)}" for one in found[:3]]
    return section(
        name,
        title,
        f"Cohen’s κ, agreement beyond chance: {join(told)}.",
        table(("judges", "policy", "same verdict, %", "κ [95%]", "prompts"), rows, "ssnnn"),
        note="A judge’s verdict on a prompt is that of both orders together: won, tied or lost. "
        "κ is 1 where judges always agree, 0 where they agree as often as by chance, and not "
        "defined where both always say one and the same. Brackets: 95% bootstrap over prompts.",
    )


def judge_section(inputs: JudgePageInputs) -> Html:
    """Who judges, and by what."""
    return section(
        "judges",
        "Who judges",
        f"{join(list(inputs.judges))}.",
        table(("judge", "goes by"), [(name, _told(one)) for name, one in inputs.judges.items()]),
    )


def _told(judge: JudgeConfig) -> str:
    if isinstance(judge, ExactJudgeConfig):
        parts = [f"{one.weight:g} · {one.name}" for one in judge.rewards]
        return f"what can be checked: {' + '.join(parts)}; equal answers tie"
    if isinstance(judge, LogProbJudgeConfig):
        tie = f"; differences up to {judge.tie_nats:g} nats tie" if judge.tie_nats else ""
        return (
            "the reference model’s log-probability per token, end-of-sequence included: how usual "
            f"an answer is to it, which is no judgement of quality{tie}"
        )
    heat = judge.endpoint.temperature
    told = "" if heat is None else f" at temperature {heat:g}"
    return f"the opinion of {judge.endpoint.model}{told}, which was told: {judge.criterion}"


def prompt_section(inputs: JudgePageInputs) -> Html:
    """The answers side by side with the verdicts on them."""
    verdicts = _verdicts(inputs)
    prompts = {one.id: one for one in inputs.said[inputs.baseline]}
    answers = {name: {one.id: one for one in said} for name, said in inputs.said.items()}

    def contradictions(prompt: str) -> int:
        by_policy = [
            {verdicts.get((judge, policy, prompt)) for judge in inputs.judged} - {None}
            for policy in inputs.policies
        ]
        return sum({"a", "b"} <= said for said in by_policy)

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
        f"On {split} of {len(prompts)} prompts one judge prefers what another does not; they stand "
        "first.",
        table(("prompt", inputs.baseline, *inputs.policies), rows),
        note=f"{min(SHOWN, len(prompts))} of {len(prompts)} prompts. Under an answer: what every "
        f"judge makes of it against {inputs.baseline}’s, both orders together; “…” marks an answer "
        "that was cut off.",
    )


def _verdicts(inputs: JudgePageInputs) -> dict[tuple[str, str, str], str]:
    """By judge, policy and prompt."""
    found = {}
    for judge, judged in inputs.judged.items():
        for policy in inputs.policies:
            own: list[Judgement] = [one for one in judged.judgements if one.a == policy]
            for prompt, both in both_orders(own).items():
                found[judge, policy, prompt] = str(preferred(both))
    return found


def _answer(said: PolicyAnswer) -> str:
    return (excerpt(said.answer) or "(nothing)") + ("" if said.finished else " …")


def _cell(said: PolicyAnswer, verdicts: dict[str, str | None]) -> Html:
    marks = [
        f'<span class="quiet">{text(judge)}</span> {_mark(verdict)}'
        for judge, verdict in verdicts.items()
    ]
    return Html(f"<div>{text(_answer(said))}</div><div><small>{' · '.join(marks)}</small></div>")


def _mark(verdict: str | None) -> str:
    if verdict is None:
        return "–"
    return f'<span class="{_CLASSES[verdict]}">{_WORDS[verdict]}</span>'
