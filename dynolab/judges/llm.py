"""Judge-class models behind an endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.endpoint import Answered, Endpoint, Failure
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.judges.contests import ORDERS
from dynolab.judges.verdict import Place, parse_verdict, refuses
from dynolab.judges.wording import CRITERION, judging_request
from dynolab.results.judges import Contest, Judgement, Outcome

SAID = 160
"""Characters that are kept of a reply without a verdict."""

_POLICIES: dict[Place, tuple[Outcome, Outcome]] = {
    "A": ("a", "b"),
    "B": ("b", "a"),
    "TIE": ("tie", "tie"),
}
"""Whose answer stood at a place: in order, and swapped."""


class LlmJudge:
    """Asks a model which answer is better, each contest in both orders.

    A reply counts as it comes: one without a verdict is not asked for again, which would favour
    whatever makes the judge speak plainly.

    **Arguments:**

    - `endpoint`: whose cache makes it resumable; requests that stay without an answer are counted
      as failed.
    - `criterion`: what makes an answer better, in sentences for the judge.
    """

    def __init__(self, name: str, endpoint: Endpoint, criterion: str = CRITERION) -> None:
        self.name, self._endpoint, self._criterion = name, endpoint, criterion

    def judge(
        self, contests: Sequence[Contest], on_progress: OnProgress = ignore_progress
    ) -> list[Judgement]:
        """As `Judge.judge`; raises as `Endpoint.ask`."""
        asked = [(contest, swapped) for contest in contests for swapped in ORDERS]
        requests = [
            judging_request(contest, swapped, self._criterion) for contest, swapped in asked
        ]
        answers = self._endpoint.ask(requests, on_progress)
        return [
            self._judgement(contest, swapped, answer)
            for (contest, swapped), answer in zip(asked, answers, strict=True)
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
            said=" ".join(reply.split())[:SAID],
        )


def read_reply(answer: Answered | Failure, swapped: bool) -> tuple[Outcome, str]:
    """What a reply comes to, and where it is no verdict what stood in its place.

    A reply that was cut is no verdict: what was to follow may have taken it back.
    """
    if isinstance(answer, Failure):
        return "failed", answer.reason
    place = None if answer.declined or answer.cut else parse_verdict(answer.text)
    if place is not None:
        return _POLICIES[place][swapped], ""
    declined = answer.declined or refuses(answer.text)
    cut = "cut at its longest: " if answer.cut else ""
    return ("refused" if declined else "unparsable"), cut + answer.text
