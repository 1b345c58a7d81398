"""Probes in third-party trainers: `transformers.Trainer` and TRL's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import FSDPModule

from dynolab import distributed
from dynolab.data.encode import Encoded, Encoder, Overlong
from dynolab.data.rows import ProbeRow, replace_rows, whole_rows
from dynolab.data.unknown import warn_of_unread
from dynolab.errors import ConfigError, check_installed
from dynolab.integrations.evaluation import evaluation_weights
from dynolab.integrations.pace import Pace
from dynolab.integrations.sharded import callable_in_parts
from dynolab.integrations.trained import (
    Watching,
    check_trainer,
    context_of,
    unwrapped,
    watched_answers,
)
from dynolab.likelihood.streamed import widened
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import ProbeScorer, mean_by_kind
from dynolab.results.study import ProbeScore, Score
from dynolab.training.alarm import Alarm, AlarmConfig, check_watched

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

_log = logging.getLogger(__name__)


class ProbeCallback(Watching):
    """Scores probe rows before the first update, at some steps, and at the end.

    Writes one line per row and probe (`ProbeScore`) to `file`, and logs the means of each kind
    (`probe/<kind>/logp`, …) through the trainer. Data-parallel ranks split the rows. The policy is
    in eval mode while it is scored, and computes in float32, also with weights in 16 bits (a layer
    at a time), as `ForceCallback` does. An optimizer that evaluates other weights than it trains
    (schedule-free) has them scored. If a probe fails, one warning says why, no further ones are
    made, and training goes on.

    **Arguments:**

    - `trainer`: a `transformers.Trainer`, or one of TRL's, of a causal language model.
    - `rows`: the probe rows (`build_probes`, `read_rows(path, ProbeRow)`). Default: the answers of
      the first rows of `trainer.eval_dataset`, else of the training rows, token by token as the
      trainer reads them.
    - `share`: of the training's time that probes may take; the first one, before the first step,
      measures what one takes.
    - `every`: optimizer steps between probes, in place of a share.
    - `pairs`: rows of each of those datasets, where `rows` are not given.
    - `file`: default: `probes.jsonl` in the trainer's output folder. A run that starts at step 0
      replaces it, one that goes on from a checkpoint keeps the scores of the steps before it.
    - `batch_tokens`: bound of rows × padded length per forward.
    - `overlong`: what to do with rows longer than the model's context.
    - `alarm`: on the squeezing gap; it can end the training early.

    **Raises:** `ConfigError` for a trainer without a tokenizer or with weights split by FSDP 1, and
    for datasets without answers.
    """

    def __init__(
        self,
        trainer: Trainer,
        rows: Sequence[ProbeRow] | None = None,
        *,
        share: float = 0.1,
        every: int | None = None,
        pairs: int = 20,
        file: Path | None = None,
        batch_tokens: int = 16_384,
        overlong: Overlong = "error",
        alarm: AlarmConfig | None = None,
    ) -> None:
        self.pace = Pace(share, every)
        if rows is not None and not rows:
            raise ConfigError("rows", 0, "give at least one probe row")
        check_trainer(trainer, "probes", sharded=True)
        self._encoder = Encoder(trainer.processing_class, context_of(trainer), overlong)  # type: ignore[arg-type]
        self._sequences: Sequence[Encoded | None]
        if rows is None:
            rows, self._sequences = watched_answers(trainer, pairs)
        else:
            self._sequences = self._encoder.probes(rows)
            if distributed.rank() == 0:
                warn_of_unread(self._encoder.tokenizer, [row.response for row in rows])
        check_watched(alarm, rows)
        self.trainer, self.rows = trainer, list(rows)
        self.alarm = Alarm(alarm) if alarm is not None else None
        self.file = file or Path(str(trainer.args.output_dir)) / "probes.jsonl"
        self._batch_tokens = batch_tokens
        self._scorer: ProbeScorer | None = None
        self._scores_all = False
        self._last: int | None = None  # the step probed last
        # Seconds of a probe by which the next one is not planned yet: a step has to follow it, as
        # its own time is compared with the probe's.
        self._took: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Probes the model before the first update."""
        self._scorer = None  # the trainer may have wrapped or moved its model
        self.off = ""
        self.pace.begin(state.global_step)
        self.attempt(lambda: self._begin(state.global_step))
        self._probe(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Probes where a probe is due; plans the next one when a step has followed the last."""
        step, took, self._took = state.global_step, self._took, None
        if took is not None and self.pace.every is None:
            # The probe came before the step that has just ended.
            self.attempt(lambda: self.pace.plan(step - 1, took))
        if self.pace.due(step):
            self._probe(step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Probes the trained model, unless its last step was probed."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            # It is in the trained model's place, whose last step can no longer be probed.
            _log.warning("the best model, %s, is not probed again", state.best_model_checkpoint)
        elif state.global_step != self._last:
            self._probe(state.global_step)

    def figure(self, title: str = "training") -> Figure:
        """The learning paths so far, as `dynolab.report.study.learning_paths` draws them.

        **Raises:** `ConfigError` without plotly.
        """
        check_installed("figure", "plotly", "report")
        from dynolab.report.study.learning_paths import paths_figure

        return paths_figure(self.file, title)

    def _probe(self, step: int) -> None:
        self._last, before = step, self.pace.spent
        with self.pace.working():
            mine = self.attempt(self._scores)
            if mine is not None:
                self.attempt(lambda: self._report(step, mine))
        self._took = self.pace.spent - before

    def _report(self, step: int, mine: list[Score]) -> None:
        """Writes the scores of all ranks, logs their means, and asks the alarm."""
        from transformers import Trainer

        scores = mine if self._scores_all else list(chain.from_iterable(distributed.gather(mine)))
        if distributed.rank() == 0:
            with self.file.open("a") as file:
                file.writelines(ProbeScore(step=step, **dict(score)).line() for score in scores)
        # Logs with the base class: TRL's `log` would also log and reset its running averages.
        # Logging clears `should_log`, but the trainer's own log of this step is still to come.
        due, means = self.trainer.control.should_log, self._means(scores)
        if self.alarm is not None:
            means |= self.alarm.update(step, means)
            # Only rank 0 decides, so that ranks cannot diverge.
            if distributed.gather(self.alarm.stops)[0]:
                self.trainer.control.should_training_stop = True
        Trainer.log(self.trainer, means)
        self.trainer.control.should_log = due

    def _means(self, scores: list[Score]) -> dict[str, float]:
        """Means of the training rows' scores; of the held-out ones where no others are watched."""
        if not any(score.split == "train" for score in scores):
            scores = [score.model_copy(update={"split": "train"}) for score in scores]
        return mean_by_kind(scores)

    def _begin(self, step: int) -> None:
        """Keeps the scores before `step` alone, resets the alarm and replays them."""
        earlier: list[ProbeScore] = []
        if distributed.rank() == 0:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if step > 0 and self.file.exists():
                earlier = [
                    score for score in whole_rows(self.file, ProbeScore) if score.step < step
                ]
            replace_rows(self.file, earlier)
        if self.alarm is None:
            return
        self.alarm = Alarm(self.alarm.config)
        scores_of: dict[int, list[Score]] = {}
        for score in earlier:
            scores_of.setdefault(score.step, []).append(score)
        by_step = {probed: self._means(scores) for probed, scores in scores_of.items()}
        # Rank 0 alone has read the file.
        for probed, means in distributed.gather(by_step)[0].items():
            self.alarm.update(probed, means)

    def _scores(self) -> list[Score]:
        """Scores this rank's rows."""
        model: Any = unwrapped(self.trainer)
        with callable_in_parts(model):
            if self._scorer is None:
                # Under ZeRO-3 and FSDP2 every forward gathers weights from all ranks: all must run
                # the same ones.
                self._scores_all = isinstance(model, FSDPModule) or any(
                    hasattr(weights, "ds_id") for weights in model.parameters()
                )
                ranks = (distributed.rank(), distributed.world_size())
                self._scorer = ProbeScorer(
                    ResponseLogits(model),
                    self.rows,
                    self._encoder,
                    batch_tokens=self._batch_tokens,
                    share=(0, 1) if self._scores_all else ranks,  # (0, 1): of one rank, all
                    sequences=self._sequences,
                )
            # Split weights are gathered by hooks that would find others in their place.
            arithmetic = nullcontext() if self._scores_all else widened(model)
            with evaluation_weights(self.trainer.optimizer, model), arithmetic:
                return self._scorer.score()
