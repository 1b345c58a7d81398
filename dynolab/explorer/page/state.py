"""What the page shows, as the query of its address, so that a view can be kept and sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlencode

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dynolab.explorer.step import Asked, Metric
from dynolab.explorer.training import Training
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.pairs import PairConfig
from dynolab.objectives.registry import ObjectiveConfig, RowConfig, names_of

View = Literal["answers", "pairs", "what-if"]
OBJECTIVES = ("", *names_of(RowConfig, base=PairConfig, in_forms=True))
"""Objectives that are asked about; empty: the training's."""

BETAS = (0.03, 0.1, 0.3, 1.0)


def _askable(name: str) -> str:
    if name not in OBJECTIVES:
        raise ValueError(f"is none of {OBJECTIVES}")
    return name


class State(BaseModel):
    """What is chosen; a field with its default is not in the address.

    `answer` is the pair whose answer of `kind` is looked at, `pair` the one that pushes, `step` a
    step of the training (None: all that are known), `place` that of one token of the answer.
    `prompt` and `response` are an answer that was typed, `beside` a second training,
    and `step_beside` a second step of the training.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)
    view: View = "answers"
    training: str = "preference"
    beside: str = ""
    split: Literal["all", "train", "heldout"] = "all"
    kind: str = "chosen"
    answer: str = ""
    prompt: str = ""
    response: str = ""
    pair: str = ""
    step: int | None = None
    step_beside: int | None = None
    place: int | None = None
    metric: Metric = "optimizer"
    without: tuple[str, ...] = ()
    dose: float = Field(1.0, ge=0, le=2)
    objective: Annotated[str, AfterValidator(_askable)] = ""
    beta: float | None = Field(None, gt=0)

    @classmethod
    def of(cls, search: str | None) -> State:
        """The state that an address names; one that cannot be names the beginning."""
        given: dict[str, Any] = dict(parse_qs((search or "").lstrip("?")))
        values = {
            name: listed if name == "without" else listed[-1] for name, listed in given.items()
        }
        try:
            return cls.model_validate(values)
        except ValidationError:
            return cls()

    def link(self, **changes: Any) -> str:
        """The address of this state with some changes; another answer replaces a typed one."""
        if "answer" in changes:
            changes = {"prompt": "", "response": ""} | changes
        changed = self.model_copy(update=changes)
        return "?" + urlencode(changed.model_dump(exclude_defaults=True), doseq=True)

    @property
    def asked(self) -> Asked:
        """The steps that are asked."""
        return Asked(metric=self.metric)

    def list_link(self) -> str:
        """The address without what is chosen from the list; in `what-if` nothing is.

        A pair stays while answers are chosen, so that its map on each is seen.
        """
        if self.view == "what-if":
            return self.link()
        pair = self.pair if self.view == "answers" else ""
        return self.link(answer="", pair=pair, step=None, step_beside=None, place=None)

    def under(self, training: Training) -> Asked:
        """The same steps under the objective that is asked about."""
        return training.asked_for(self.metric, self.objective, self.beta)

    def changed(self, training: Training) -> Asked:
        """The same steps with all that is asked about, without the ticked pairs."""
        return replace(self.under(training), without=tuple(sorted(self.without)))

    def objective_in(self, training: Training) -> ObjectiveConfig:
        """The objective that is asked about, by default the training's own; without the dose."""
        return self.under(training).objective or training.objective

    def dose_in(self, training: Training) -> float | None:
        """The factor on the rejected side; None where the objective has no dose that can be set."""
        objective = self.objective_in(training)
        if isinstance(objective, DPOConfig) and not objective.chooses_dose:
            return self.dose
        return None

    def toggled(self, pair: str) -> str:
        """The address with a pair ticked that was not, or the other way."""
        others = tuple(name for name in self.without if name != pair)
        return self.link(without=others if pair in self.without else (*others, pair))
