"""LBK and SignDelta of a step, the papers' own measures, for comparison with the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynolab.data.encode import Encoded
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.influence import kernel_lower_bound, paper_influence
from dynolab.forces.map.terms import TokenTerms, response_terms, step_terms
from dynolab.training.step_record import StepRecord


@dataclass(frozen=True)
class SourceMeasures:
    """Of one step and one answer.

    `lbk`, `sign_delta`: as Ren & Sutherland compute them (`paper_influence`); neither bounds
    anything as written. `kernel_bound`: a lower bound on ‖K‖₂ between the answer's tokens and the
    step's (`kernel_lower_bound`), the largest of its tokens.
    """

    step: int
    functional: str
    lbk: float
    sign_delta: float
    kernel_bound: float


class SourceAccounts:
    """Measures steps of a training, the last one first, on single answers by name."""

    def __init__(self, policy: PolicyFunction, answers: Sequence[tuple[str, Encoded]]) -> None:
        self._policy, self._names = policy, [name for name, _ in answers]
        self._sequences = [sequence for _, sequence in answers]
        self._next: list[TokenTerms] | None = None

    def enter(self, record: StepRecord, *, gap: int = 1) -> list[SourceMeasures]:
        """What a step did to each answer, as the papers measure it.

        **Arguments:** `gap`: steps from this one to the one entered last.
        """
        if not self._sequences:
            return []
        after = self._next if gap == 1 else None
        after = after or self._terms(record, before=False)
        before = self._terms(record, before=True)
        updating = [response.terms for response in step_terms(record, self._policy)]
        rate = record.facts.learning_rate * record.facts.clip_factor
        self._next = before
        return [
            self._measure(record.facts.step, name, own, later, updating, rate)
            for name, own, later in zip(self._names, before, after, strict=True)
        ]

    def _terms(self, record: StepRecord, *, before: bool) -> list[TokenTerms]:
        at = record.before if before else record.after
        return response_terms(self._policy, self._sequences, at=at)

    def _measure(
        self,
        step: int,
        name: str,
        before: TokenTerms,
        after: TokenTerms,
        updating: Sequence[TokenTerms],
        rate: float,
    ) -> SourceMeasures:
        change = after.logp - before.logp
        lbk, sign_delta = paper_influence(change, before, updating)
        bound = kernel_lower_bound(change, before, updating, rate)
        return SourceMeasures(
            step=step,
            functional=name,
            lbk=lbk,
            sign_delta=sign_delta,
            kernel_bound=float(bound.max()),
        )
