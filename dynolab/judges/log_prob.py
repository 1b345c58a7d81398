"""A judge by a reference model's log-probability per token."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.data.encode import Encoder
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.evaluation.samples import score_answers
from dynolab.judges.contests import Scored, scored_judgements
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.judges import Contest, Judgement

TOO_LONG = "an answer is longer than the reference model's context"


class LogProbJudge:
    """Prefers the answer y with the higher `log π_ref(y | x) / |y|`, in nats per token.

    Design choices: the mean over tokens, because a sum would favour short answers; the
    end-of-sequence token counts, so that answers which should have ended are penalised. The score
    measures how usual an answer is to the reference, not its quality: it prefers common answers to
    right ones, and models of its own family to others.

    **Arguments:**

    - `reference`: the scoring model.
    - `encoder`: the reference's encoder; it truncates a prompt equally for both answers, and a
      contest with a dropped answer fails.
    - `batch`: sequences per forward.
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
        """The likelier answer by token wins; one outside the model's context makes it fail."""
        scores = self._score(contests)
        pairs = list(zip(scores[::2], scores[1::2], strict=True))
        return scored_judgements(self.name, contests, pairs, tie=self._tie)

    def _score(self, contests: Sequence[Contest]) -> list[Scored]:
        """Scores every contest's two answers, in order."""
        encoded = []
        for contest in contests:
            answers = [contest.written(contest.answer_a), contest.written(contest.answer_b)]
            encoded += self._encoder.responses(contest.id, contest.prompt, answers, contest.turn)
        # Score duplicates once: rounding must not separate equal answers.
        distinct = list(dict.fromkeys(response for response in encoded if response is not None))
        tokenizer = self._encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        logps = score_answers(
            self._reference, distinct, pad_id=int(pad), batch=self._batch, temperature=1.0
        )
        scores: dict[object, Scored] = {None: TOO_LONG}
        for response, logp in zip(distinct, logps, strict=True):
            scores[response] = logp / response.response_length
        return [scores[response] for response in encoded]
