"""What `ForceCallback` checks of itself: whether what it reads is what trains."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dynolab import distributed
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.functional import Functional, dealt_by_length, measured_tokens
from dynolab.forces.ledger.measures import likeliest
from dynolab.integrations.evaluation import has_evaluation_weights
from dynolab.integrations.sharded import local
from dynolab.integrations.trained import Answer

if TYPE_CHECKING:
    from transformers import Trainer

Prints = Mapping[str, tuple[float, float]]
"""Sum and sum of squares of every parameter."""

OFF = {True: 0.02, False: 1e-4}
"""Share of its value by which a functional may differ from the trainer's own, in 16 bits or not."""

FEW = 3  # names of weights in a message


def fingerprints(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Of every parameter, this rank's part: what tells whether it has moved."""
    sums = {}
    for name, parameter in model.named_parameters():
        values = local(parameter).detach().flatten().double()
        sums[name] = torch.stack([values.sum(), values @ values])
    return {name: (float(pair[0]), float(pair[1])) for name, pair in sums.items()}


def moved(before: Prints, after: Prints) -> list[str]:
    """The parameters that are no longer what they were; one that is new has not moved."""
    return [name for name, prints in after.items() if before.get(name, prints) != prints]


@torch.no_grad()
def own_scores(
    trainer: Trainer, policy: PolicyFunction, functionals: Sequence[Functional]
) -> Float[Tensor, " functionals"]:
    """The functionals by a forward pass of the trainer's own model, with its hooks and wrappers.

    In eval mode and the training's arithmetic; NaN for what the likeliest tokens decide, which
    rounding may change, and where the model gives no logits. Each rank takes a share of the
    answers, and has its part of the sums over ranks.
    """
    model: Any = trainer.model
    terms = [
        (place, term) for place, functional in enumerate(functionals) for term in functional.terms
    ]
    values = torch.zeros(len(functionals), dtype=torch.float64, device=policy.device)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        sequences = [term.sequence for _, term in terms]
        for members in filter(None, dealt_by_length(sequences, policy.batch_tokens, dealt=True)):
            batch = policy.batch([terms[member][1].sequence for member in members])
            with trainer.compute_loss_context_manager():
                output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
            logits = getattr(output, "logits", None)
            if logits is None:
                return torch.full_like(values, torch.nan)
            at_responses = logits[batch.token_row, batch.position].float()
            measures = [terms[member][1].measure for member in members]
            measured = measured_tokens(measures, batch, at_responses)
            sums = batch.sequence_sum(measured.double())
            for member, total in zip(members, sums, strict=True):
                place, term = terms[member]
                values[place] += torch.nan if term.measure == likeliest else term.weight * total
    finally:
        for module, mode in modes.items():
            module.training = mode
    return values


class SelfCheck:
    """The checks of the accounts of one training; `failed` says what did, once by kind.

    **Arguments:** `covered`: names of the parameters that accounts are of; `coarse`: the training
    computes in 16 bits.
    """

    def __init__(
        self,
        trainer: Trainer,
        policy: PolicyFunction,
        functionals: Sequence[Functional],
        covered: Collection[str],
        *,
        coarse: bool,
    ) -> None:
        self._trainer, self._policy, self._functionals = trainer, policy, functionals
        self._covered, self._off = set(covered), OFF[coarse]
        self._prints: Prints = {}
        self._scores = self._after = torch.empty(0)
        self._uncovered: list[str] = []
        self.failed: dict[str, str] = {}

    def optimizer(self, optimizer: Any) -> None:
        """Looks at the optimizer of a training that begins."""
        if has_evaluation_weights(optimizer):
            self._say(
                "other weights",
                "the optimizer trains other weights than it evaluates and saves; accounts are of "
                "the trained ones, probes of the others",
            )

    def before_passes(self) -> None:
        """A step with an account begins. No rank waits for another one."""
        self._prints = fingerprints(self._policy.model)
        self._scores = own_scores(self._trainer, self._policy, self._functionals)

    def before_step(self, values: Float[Tensor, " functionals"]) -> None:
        """The gradients are there; `values` are the functionals as the account reads them.

        All ranks call it together.
        """
        self._scores = distributed.add_up(self._scores).cpu()
        prints = fingerprints(self._policy.model)
        names = moved(self._prints, prints)
        if names:
            self._say(
                "moved early",
                f"{_named(names)} moved between the step's begin and the optimizer's step; what "
                "moved them is in no account",
            )
        elif bool(self._differs(self._scores, values.cpu()).any()):
            self._say(
                "other forward",
                f"the trainer's model scores the watched answers at {_numbers(self._scores)} nats, "
                f"its layers at {_numbers(values)}: a hook, a wrapper or an option of its forward "
                "is not in the accounts",
            )
        self._prints = prints

    def tokens(
        self,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
        answers: Sequence[Answer],
    ) -> None:
        """Compares what the loss depends on with what the collator gave.

        **Arguments:** `sequences`: tokens of the step's sequences, and the places of those on whose
        scores the loss depends; `answers`: the sequences of the step's batches, none where they are
        not known.
        """
        rows = {answer.ids: answer for answer in answers}
        prompts = {answer.ids for answer in answers if answer.kind == "prompt"}
        if not rows or prompts:  # answers that are generated are in no row
            return
        strangers = [ids for ids, _ in sequences if tuple(ids) not in rows]
        if strangers:
            self._say(
                "other tokens",
                f"{len(strangers)} of {len(sequences)} sequences that were trained on are none of "
                "those that the collator gave: the trainer changes tokens on their way to the "
                "model, and their lines have names of their text",
            )
        missing = extra = 0
        for ids, places in sequences:
            answer = rows.get(tuple(ids))
            # A stranger, a row without an answer, or a sequence that the loss leaves out.
            if answer is None or answer.answer is None or not places:
                continue
            marked = set(answer.answer.positions)
            missing += len(marked.difference(places))
            extra += len(set(places) - marked)
        if missing or extra:
            self._say(
                "other mask",
                f"in one step the loss leaves out {missing} tokens that the collator marks as "
                f"trained, and depends on {extra} that it does not mark, such as prompts; watched "
                "answers are the marked tokens",
            )

    def after_passes(self) -> None:
        """The step is made. No rank waits for another one."""
        self._uncovered = [
            name
            for name in moved(self._prints, fingerprints(self._policy.model))
            if name not in self._covered
        ]
        self._after = own_scores(self._trainer, self._policy, self._functionals)

    def after_step(
        self, measured: Float[Tensor, " functionals"], size: Float[Tensor, " functionals"]
    ) -> Float[Tensor, " functionals"]:
        """The change of the trainer's own scores that is not measured; all ranks call it together.

        **Arguments:** `measured`: the account's change of the functionals; `size`: the sum of the
        account's parts without their signs.
        """
        if self._uncovered:
            self._say(
                "not covered",
                f"{_named(self._uncovered)} moved in a step whose account does not cover them; "
                "weights that are freed during a training are in none",
            )
        after = distributed.add_up(self._after).cpu()
        unread = (after - self._scores - measured.cpu()).nan_to_num(0.0)
        # A share of the scores, for the arithmetic of two forwards, and one of what happened.
        allowed = self._off * (after.abs() + self._scores.abs()).nan_to_num(0.0) + 0.05 * size.cpu()
        if bool((unread.abs() > allowed).any()):
            self._say(
                "unread",
                f"the step changed the trainer's own scores by {_numbers(unread)} nats more than "
                "the account measures; see ledger/<kind>/unread",
            )
        return unread

    def parts(
        self,
        rounding: Float[Tensor, " functionals"],
        unexplained: Float[Tensor, " functionals"],
        size: Float[Tensor, " functionals"],
    ) -> None:
        """Compares what has no source with all parts of the account.

        **Arguments:** `rounding`: what the optimizer's formula does not give; `unexplained`: what
        no sequence makes; `size`: the sum of all parts without their signs.
        """
        if bool((unexplained.abs() > 0.05 * size + 1e-6).any()):
            self._say(
                "other gradient",
                f"{_numbers(unexplained)} nats come from a part of the gradient that no sequence "
                "makes, such as an auxiliary loss, or a callback that changes gradients",
            )
        if bool((rounding.abs() > 0.05 * size + 1e-6).any()):
            self._say(
                "other step",
                f"the optimizer moved the watched answers by {_numbers(rounding)} nats beside what "
                "its formula makes of the gradient: clipping or a change of the gradient that the "
                "accounts do not see",
            )

    def _differs(
        self, scores: Float[Tensor, " functionals"], values: Float[Tensor, " functionals"]
    ) -> Bool[Tensor, " functionals"]:
        difference = (scores - values).abs().nan_to_num(0.0)
        return difference > self._off * values.abs() + 1e-3

    def _say(self, kind: str, text: str) -> None:
        self.failed.setdefault(kind, text)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:FEW])
    return f"{len(names)} weights ({shown}{', …' if len(names) > FEW else ''})"


def _numbers(values: Float[Tensor, " functionals"]) -> str:
    return ", ".join(f"{value:.4g}" for value in values.tolist())
