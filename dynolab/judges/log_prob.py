"""A judge by a reference model's log-probability per token."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.data.encode import Encoder
from dynolab.data.rows import answer
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.evaluation.samples import score_answers
from dynolab.judges.scored import Scored, scored_judgements
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.judges import Contest, Judgement

TOO_LONG = "an answer is longer than the reference model's context"


class LogProbJudge:
    """Prefers the answer y with the higher `log π_ref(y | x) / |y|`, in nats per token.

    Choices: the mean over tokens, as a sum would prefer short answers; the end-of-sequence token
    counts, so that answers which should have ended are not excused. What it measures is how usual
    an answer is to the reference, which is no judgement of its quality: it prefers the common to
    the right, and a model of its own family to others.

    **Arguments:**

    - `reference`: the model that scores.
    - `encoder`: for the reference; where a prompt must be cut, it is cut alike for both answers.
      Where an answer is dropped, its contest fails.
    - `batch`: sequences of one forward.
    - `tie_nats`: differences per token up to this are ties.
    """

    def __init__(
        self,
        name: str,
        reference: ResponseLogits,
        encoder: Encoder,
        *,
        batch: int = 32,
        tie_nats: float = 0.0,
    ) -> None:
        self.name, self._reference, self._encoder = name, reference, encoder
        self._batch, self._tie = batch, tie_nats

    def judge(
        self, contests: Sequence[Contest], on_progress: OnProgress = ignore_progress
    ) -> list[Judgement]:
        """As `Judge.judge`."""
        scores = self._score(contests)
        pairs = list(zip(scores[::2], scores[1::2], strict=True))
        return scored_judgements(self.name, contests, pairs, tie=self._tie)

    def _score(self, contests: Sequence[Contest]) -> list[Scored]:
        """Of every contest's two answers, in order."""
        encoded = [
            answered
            for contest in contests
            for answered in self._encoder.responses(
                contest.id, contest.prompt, [answer(contest.answer_a), answer(contest.answer_b)]
            )
        ]
        # Once each: rounding must not tell equal answers apart.
        kept = list(dict.fromkeys(answered for answered in encoded if answered is not None))
        tokenizer = self._encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        logps = score_answers(
            self._reference, kept, pad_id=int(pad), batch=self._batch, temperature=1.0
        )
        known = {
            answered: logp / answered.response_length
            for answered, logp in zip(kept, logps, strict=True)
        }
        return [TOO_LONG if answered is None else known[answered] for answered in encoded]
