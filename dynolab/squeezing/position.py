"""One position of a chosen answer, and the probabilities of its tokens over a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.rows import ProbeRow
from dynolab.results.study import TokenProbability
from dynolab.squeezing.index import Logits

SHOWN = 6
"""Tokens whose probability is kept; the rest is summed."""

Answers = Sequence[tuple[ProbeRow, Encoded]]
Texts = Callable[[Sequence[int]], str]
"""The text of token ids."""

_PAD_ID = 0


@torch.no_grad()
def most_squeezed(
    before: Logits, after: Logits, answers: Answers, device: torch.device | str
) -> tuple[int, int] | None:
    """The answer and the position in it at which `log π(y*) − log π(y⁺)` grew most, in nats.

    y* is the token that is likeliest before, y⁺ the answer's own; they differ there. None if there
    is no such position.

    **Arguments:** `before`, `after`: two policies.
    """
    best: tuple[float, int, int] | None = None
    for number, (_, answer) in enumerate(answers):
        batch = collate([answer], _PAD_ID).to(device)
        old, new = (policy(batch).double().log_softmax(-1) for policy in (before, after))
        ends = torch.stack([old.argmax(-1), batch.token], dim=-1)
        growth = new.gather(-1, ends) - old.gather(-1, ends)
        gap = growth[:, 0] - growth[:, 1]
        gap[ends[:, 0] == ends[:, 1]] = -torch.inf
        place = int(gap.argmax())
        if gap[place] > -torch.inf and (best is None or gap[place] > best[0]):
            best = float(gap[place]), number, place
    return best and best[1:]


@dataclass(frozen=True)
class SqueezedPosition:
    """The most squeezed position of some answers, and the tokens that are shown there.

    `batch`: the answer alone; `place`: in its response; `roles`: by token id, as in
    `TokenProbability`; `texts`: of token ids.
    """

    pair_id: str
    after: str
    batch: TokenBatch
    place: int
    roles: Mapping[int, str]
    texts: Texts

    @classmethod
    def find(
        cls,
        before: Logits,
        after: Logits,
        answers: Answers,
        rejected: Mapping[str, Encoded],
        texts: Texts,
        device: torch.device | str,
    ) -> SqueezedPosition | None:
        """The position, with y⁺, y⁻ where the rejected answer is the same up to there, y*, and the
        likeliest others before and after, `SHOWN` tokens in all. None if nothing was squeezed.

        **Arguments:** `before`, `after`: the policy at the training's start and end; `answers`:
        chosen ones; `rejected`: by pair.
        """
        most = most_squeezed(before, after, answers, device)
        if most is None:
            return None
        (row, answer), place = answers[most[0]], most[1]
        batch = collate([answer], _PAD_ID).to(device)
        old, new = (_probabilities(policy, batch, place) for policy in (before, after))
        roles = _roles(old, answer, place, rejected.get(row.pair_id))
        for token in torch.maximum(old, new).topk(min(SHOWN, len(old))).indices.tolist():
            if len(roles) < SHOWN:
                roles.setdefault(token, "other")
        start = answer.prompt_length
        beginning = texts(answer.ids[start : start + place])
        return cls(row.pair_id, beginning, batch, place, roles, texts)

    def rows(self, policy: Logits, step: int) -> list[TokenProbability]:
        """The tokens' probabilities in a state of the training."""
        of_state = _probabilities(policy, self.batch, self.place)
        return [
            TokenProbability(
                pair_id=self.pair_id,
                after=self.after,
                step=step,
                token=self.texts([token]),
                role=role,
                probability=float(of_state[token]),
            )
            for token, role in self.roles.items()
        ]


@torch.no_grad()
def _probabilities(policy: Logits, batch: TokenBatch, place: int) -> Float[Tensor, " vocabulary"]:
    """Probabilities of the next token at a place of the batch's only response."""
    return policy(batch)[place].double().softmax(-1).cpu()


def _roles(
    before: Float[Tensor, " vocabulary"], answer: Encoded, position: int, rejected: Encoded | None
) -> dict[int, str]:
    """y⁺, y⁻ and y* by their token ids."""
    place = answer.prompt_length + position
    roles = {answer.ids[place]: "chosen"}
    if rejected is not None and rejected.ids[:place] == answer.ids[:place]:
        for token in rejected.ids[place : place + 1]:
            roles.setdefault(token, "rejected")
    roles.setdefault(int(before.argmax()), "argmax")
    return roles
