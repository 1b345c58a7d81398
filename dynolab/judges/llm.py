"""Judges by a language model behind an endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.endpoint import Answered, Endpoint, Failure
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.judges.contests import ORDERS
from dynolab.judges.verdict import Place, parse_verdict, refuses
from dynolab.judges.wording import CRITERION, judging_request
from dynolab.results.judges import Contest, Judgement, Outcome

KEPT_CHARACTERS = 160
"""Characters stored of a reply without a verdict."""

_OUTCOMES: dict[Place, tuple[Outcome, Outcome]] = {
    "A": ("a", "b"),
    "B": ("b", "a"),
    "TIE": ("tie", "tie"),
}
"""Policy that a verdict prefers: in order, and swapped."""


class LlmJudge:
    """Asks a model which answer is better, for each contest in both orders.

    Replies without a verdict are not retried: that would favour answers that make the judge speak
    plainly.

    **Arguments:**

    - `endpoint`: its cache makes judging resumable; requests without an answer count as failed.
    - `criterion`: what makes an answer better, as stated to the judge.
    """

    def __init__(self, name: str, endpoint: Endpoint, criterion: str = CRITERION) -> None:
        self.name, self._endpoint, self._criterion = name, endpoint, criterion

    def judge(
        self, contests: Sequence[Contest], on_progress: OnProgress = ignore_progress
    ) -> list[Judgement]:
        """As `Judge.judge`; raises as `Endpoint.ask`."""
        shown = [(contest, swapped) for contest in contests for swapped in ORDERS]
        requests = [
            judging_request(contest, swapped, self._criterion) for contest, swapped in shown
        ]
        answers = self._endpoint.ask(requests, on_progress)
        return [
            self._judgement(contest, swapped, answer)
            for (contest, swapped), answer in zip(shown, answers, strict=True)
        ]

    def _judgement(self, contest: Contest, swapped: bool, answer: Answered | Failure) -> Judgement:
        outcome, reply = read_reply(answer, swapped)
        return Judgement(
            judge=self.name,
            id=contest.id,
            a=contest.a,
            b=contest.b,
            swapped=swapped,
            outcome=outcome,
            said=" ".join(reply.split())[:KEPT_CHARACTERS],
        )


def read_reply(answer: Answered | Failure, swapped: bool) -> tuple[Outcome, str]:
    """The outcome of a reply and, without a verdict, the reply's text or the reason for failure.

    A truncated reply is not a verdict: the missing part might have revoked it.
    """
    if isinstance(answer, Failure):
        return "failed", answer.reason
    place = None if answer.declined or answer.cut else parse_verdict(answer.text)
    if place is not None:
        return _OUTCOMES[place][swapped], ""
    declined = answer.declined or refuses(answer.text)
    cut = "cut at its longest: " if answer.cut else ""
    return ("refused" if declined else "unparsable"), cut + answer.text
