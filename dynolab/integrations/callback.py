"""Probes in third-party trainers: `transformers.Trainer` and TRL's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from dynolab import distributed
from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.data.unknown import warn_of_unread
from dynolab.errors import ConfigError, check_installed
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import ProbeScorer
from dynolab.probes.summary import mean_by_kind
from dynolab.results.study import ProbeScore, Score
from dynolab.training.alarm import Alarm, AlarmConfig, check_watched

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


class ProbeCallback(TrainerCallback):
    """Scores probe rows before the first update, every `every` updates, and at the end.

    Writes one line per row and probe (`ProbeScore`) to `file`, and logs the means of each kind
    (`probe/<kind>/logp`, …) through the trainer. Data-parallel ranks split the rows. The policy is
    in eval mode while it is scored, and computes in its weights' precision.

    **Arguments:**

    - `trainer`: a `transformers.Trainer`, or one of TRL's, of a causal language model.
    - `rows`: the probe rows (`build_probes`, `read_rows(path, ProbeRow)`).
    - `every`: optimizer steps between probes.
    - `file`: default: `probes.jsonl` in the trainer's output folder. A run that starts at step 0
      replaces it, a resumed one appends to it.
    - `batch_tokens`: bound of rows × padded length per forward.
    - `overlong`: what to do with rows longer than the model's context.
    - `alarm`: on the squeezing gap; it can end the training early.

    **Raises:** `ConfigError` for a trainer without a tokenizer or with weights split by FSDP, and
    at the start of training for rows that do not fit.
    """

    def __init__(
        self,
        trainer: Trainer,
        rows: Sequence[ProbeRow],
        *,
        every: int = 50,
        file: Path | None = None,
        batch_tokens: int = 16_384,
        overlong: Overlong = "error",
        alarm: AlarmConfig | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError("every", every, "must be 1 optimizer step or more")
        if not rows:
            raise ConfigError("rows", 0, "give at least one probe row")
        tokenizer: Any = trainer.processing_class
        if not hasattr(tokenizer, "eos_token_id"):
            raise ConfigError(
                "trainer.processing_class",
                type(tokenizer).__name__,
                "pass the model's tokenizer to the trainer",
            )
        if trainer.is_fsdp_enabled:
            raise ConfigError(
                "trainer.args.fsdp",
                True,
                "probes need unsharded weights; train with DDP or DeepSpeed",
            )
        check_watched(alarm, rows)
        self.trainer, self.rows, self.every = trainer, list(rows), every
        self.alarm = Alarm(alarm) if alarm is not None else None
        self.file = file or Path(str(trainer.args.output_dir)) / "probes.jsonl"
        self._batch_tokens, self._overlong = batch_tokens, overlong
        self._tokenizer = tokenizer
        self._scorer: ProbeScorer | None = None
        self._last: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Probes the model before the first update."""
        self._scorer = None  # the trainer may have wrapped or moved its model
        if state.global_step == 0 and distributed.rank() == 0:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.unlink(missing_ok=True)
        self._replay_alarm(state.global_step)
        self._probe(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Probes every `every` steps."""
        if state.global_step % self.every == 0:
            self._probe(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Probes the trained model, unless its last step was probed."""
        if state.global_step != self._last:
            self._probe(state.global_step)

    def figure(self, title: str = "training") -> Figure:
        """The learning paths so far, as `dynolab.report.study.learning_paths` draws them.

        **Raises:** `ConfigError` without plotly.
        """
        check_installed("figure", "plotly", "report")
        from dynolab.report.study.learning_paths import paths_figure

        return paths_figure(self.file, title)

    def _probe(self, step: int) -> None:
        from transformers import Trainer

        self._last = step
        scores = self._scores()
        if distributed.rank() == 0:
            with self.file.open("a") as file:
                file.writelines(ProbeScore(step=step, **dict(score)).line() for score in scores)
        # Logs with the base class: TRL's `log` would also log and reset its running averages.
        # Logging clears `should_log`, but the trainer's own log of this step is still to come.
        due, means = self.trainer.control.should_log, mean_by_kind(scores)
        if self.alarm is not None:
            means |= self.alarm.update(step, means)
            # Only rank 0 decides, so that ranks cannot diverge.
            if distributed.gather(self.alarm.stops)[0]:
                self.trainer.control.should_training_stop = True
        Trainer.log(self.trainer, means)
        self.trainer.control.should_log = due

    def _replay_alarm(self, step: int) -> None:
        """Resets the alarm and replays the probes before `step`."""
        if self.alarm is None:
            return
        self.alarm = Alarm(self.alarm.config)
        before: dict[int, list[Score]] = {}
        if distributed.rank() == 0 and self.file.exists():
            for score in read_rows(self.file, ProbeScore):
                if score.step < step:
                    before.setdefault(score.step, []).append(score)
        by_step = {probed: mean_by_kind(scores) for probed, scores in before.items()}
        for probed, means in distributed.gather(by_step)[0].items():
            self.alarm.update(probed, means)

    def _scores(self) -> list[Score]:
        """Scores all rows; returns all scores on every rank."""
        model: Any = self.trainer.accelerator.unwrap_model(self.trainer.model)
        # Under ZeRO-3 every forward gathers weights from all ranks, so all must run the same ones.
        scores_all = any(hasattr(weights, "ds_id") for weights in model.parameters())
        if self._scorer is None:
            text_config = model.config.get_text_config()
            context = getattr(text_config, "max_position_embeddings", None)
            if context is None:
                raise ConfigError(
                    "trainer.model.config.max_position_embeddings",
                    None,
                    "not set; set it to the length of the longest row in tokens",
                )
            encoder = Encoder(self._tokenizer, int(context), self._overlong)
            if distributed.rank() == 0:
                warn_of_unread(self._tokenizer, [row.response for row in self.rows])
            share = (0, 1) if scores_all else (distributed.rank(), distributed.world_size())
            self._scorer = ProbeScorer(
                ResponseLogits(model),
                self.rows,
                encoder,
                batch_tokens=self._batch_tokens,
                share=share,
            )
        mine = self._scorer.score()
        return mine if scores_all else list(chain.from_iterable(distributed.gather(mine)))
