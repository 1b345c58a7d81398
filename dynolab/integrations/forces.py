"""Forces in other people's trainers: `transformers.Trainer` and TRL's of causal language models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow
from dynolab.errors import check_installed, check_settings
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import NamedTensors
from dynolab.forces.ledger.entries import StepAccount
from dynolab.forces.ledger.functional import WatchedFunctional
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.measured import Source, measured_means
from dynolab.forces.ledger.tables import part_metrics
from dynolab.forces.ledger.trainer_passes import TrainerPasses
from dynolab.forces.ledger.watched import (
    check_kinds,
    mean_of,
    training_means,
)
from dynolab.forces.map.weighted import Updating
from dynolab.integrations.accounts import AccountFolder
from dynolab.integrations.optimizer import (
    OptimizerView,
    TrainerOptimizer,
    ZeroOptimizer,
    ZeroThreeOptimizer,
    around_next_step,
)
from dynolab.integrations.pace import Pace
from dynolab.integrations.reference import reference_logps
from dynolab.integrations.rows import BatchRows, Sequenced
from dynolab.integrations.self_check import SelfCheck
from dynolab.integrations.sequence_names import SequenceNames
from dynolab.integrations.sharded import (
    ShardedGradients,
    callable_in_parts,
    is_whole,
    local,
    passes_of_ours,
)
from dynolab.integrations.trained import (
    Watching,
    check_trainer,
    context_of,
    unwrapped,
    watched_answers,
)
from dynolab.integrations.trainer_step import ROUNDED, BeforeStep, TrainerStep
from dynolab.results.study import ARGMAX
from dynolab.rollouts.rewards import Reward, RewardConfig, Rewards

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

VECTORS = 3
"""How many vectors as long as the trained weights an account holds: the weights and both moments
before the step. Each functional has one more. Of all else some rows of a weight are held."""

_log = logging.getLogger(__name__)


class ForceCallback(Watching):
    """Says at chosen steps which sequence of the batch moved which answers, and what else did.

    `Δq = Σ_i line_i + together + decay + momentum + unexplained + arithmetic + residual` for the
    mean log-probability q of the watched answers of a kind, in nats. A sequence's line is what the
    step would have lacked without it, by the optimizer's own update (`Removal`); of an optimizer of
    unknown form, its share of what the step did along the gradient. `together` is what sequences
    did by sharing a clip factor and a second moment. Sums over sequences that are pushed up
    (`chosen`) and down (`rejected`) go through the trainer's log, `ledger/<kind>/<part>`; every
    sequence's line goes to `folder` (`dynolab.results.ledger`), and at the end a page,
    `ledger.html`. Gradients are those of the trainer's own backward pass, whatever its loss;
    `unexplained` is what they have beside the sequences', such as an auxiliary loss, and what an
    optimizer of unknown form did beside them; `arithmetic` is what rounding did.

    Where FSDP2 or ZeRO-3 splits the weights, a rank holds its shares of all vectors, and parameters
    other than those of linear layers, embeddings and norms have no lines.

    Training goes on as without the callback, to the bit. If an account fails, one warning says why,
    and no further ones are made.

    **Arguments:**

    - `trainer`: a `transformers.Trainer`, or one of TRL's, of a causal language model.
    - `rows`: what is watched (`build_probes`, `read_rows(path, ProbeRow)`), split `train`. Default:
      the answers of the first rows of `trainer.eval_dataset`, else of the training rows.
    - `examples`: pairs that are trained on: their sequences are named by the pairs' ids. Others
      have their row's `id` in `trainer.train_dataset`, or its number (`row-000012`); what is in
      none of its rows, a checksum of its text.
    - `share`: of the training's time that accounts may take. The first step has one, which
      measures what one takes; further ones are spaced by it. What they take is logged once.
    - `every`: optimizer steps between accounts, in place of a share.
    - `kinds`: of the watched answers; each has an account. Default: those of chosen and rejected
      ones that are watched. Further ones are measured at them (`dynolab.results.ledger.MEASURED`):
      `entropy`, `kl`, `margin`, `reward`.
    - `pairs`: watched pairs, the first ones, whose answers are averaged.
    - `reward`: for kind `reward`: `(prompt, answers, row) -> one number an answer`, or the name of
      one of the rules of `dynolab.rollouts.rewards`.
    - `folder`: default: `ledger` in the trainer's output folder. Each account is there when it is
      made, a resumed training goes on in it, and a second training has `ledger-2`.

    **Raises:** `ConfigError` for a trainer whose steps it cannot account for.
    """

    def __init__(
        self,
        trainer: Trainer,
        rows: Sequence[ProbeRow] | None = None,
        *,
        examples: Sequence[Example] = (),
        share: float = 0.1,
        every: int | None = None,
        kinds: Sequence[str] | None = None,
        pairs: int = 8,
        reward: Reward | str | None = None,
        folder: Path | None = None,
    ) -> None:
        check_installed("ForceCallback", "plotly", "report")  # for the page, after training
        check_trainer(trainer, "forces", sharded=True)
        _check_settings(trainer)
        self.trainer, self.pace = trainer, Pace(share, every)
        self.folder = folder or Path(str(trainer.args.output_dir)) / "ledger"
        rule = Rewards([RewardConfig(name=reward)]) if isinstance(reward, str) else reward
        source = Source(partial(reference_logps, trainer), rule)
        if rows is None:
            self._watched = _evaluated(trainer, kinds, pairs, source)
        else:
            encoder = Encoder(trainer.processing_class, context_of(trainer), "drop")  # type: ignore[arg-type]
            chosen_kinds = kinds or ("chosen", "rejected")
            self._watched = training_means(chosen_kinds, rows, encoder, pairs, "kinds", source)
        self._examples = examples
        # What was asked for; `folder` becomes that of the training at hand, such as `ledger-2`.
        self._folder = self.folder
        self._is_due = False
        self._has_said_costs = False
        self._spent_before = 0.0  # of `pace`, when the step at hand began
        self._optimizer_view: OptimizerView | None = None
        self._batch_rows: BatchRows | None = None
        self._check: SelfCheck | None = None
        self._before_step: BeforeStep | None = None
        self._accounts: AccountFolder | None = None
        # Records the passes of a step; None until a training has begun.
        self._live: TrainerPasses | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks at model, rows and optimizer, and tries the model's rules against autograd."""
        self.off, self._before_step, self._has_said_costs = "", None, False
        loader = kwargs.get("train_dataloader")
        self.pace.begin(state.global_step)
        with self.pace.working():
            self.attempt(lambda: self._prepare(state.global_step, loader))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the hooks where an account is due."""
        live = self._live
        self._is_due = live is not None and not self.off and self.pace.due(state.global_step)
        if live is not None and self._is_due:
            self._spent_before = self.pace.spent
            with self.pace.working():
                if self._check is not None:
                    self.attempt(self._check.before_passes)
            self.attempt(live.begin)
            if self.trainer.is_deepspeed_enabled and not self.off:
                # Its step is over before `on_pre_optimizer_step` and `on_optimizer_step`.
                around_next_step(
                    self.trainer.model_wrapped,
                    self._read_step,
                    lambda: self._account_for(state.global_step),
                )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the sequences' gradients and the state before the step."""
        if not self.trainer.is_deepspeed_enabled and self._is_due:
            self._read_step()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Accounts for the step that has just been made."""
        self._account_for(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Plans the next account, by what this one took."""
        if self._is_due:
            self._is_due = False
            self.attempt(lambda: self._plan(state.global_step - 1))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets go of the trainer; the accounts and their page are written."""
        if self._optimizer_view is not None:
            self._optimizer_view.close()
        if self._batch_rows is not None:
            self._batch_rows.end()

    def give_up(self) -> None:
        """Lets go of passes and hooks; accounts that were made are written at the end."""
        self._before_step = None
        if self._live is not None:
            self._live.end()
            self._live.forwards = []

    def _read_step(self) -> None:
        """Before the step."""
        assert self._live is not None
        with self.pace.working():
            self.attempt(self._live.made)  # on this rank, before ranks meet
            before = self.attempt(self._before)
            if before is not None:
                self._before_step = self.attempt(lambda: self._compared(before))

    def _account_for(self, number: int) -> None:
        """After the step."""
        before, self._before_step = self._before_step, None
        if before is None:
            return
        with self.pace.working():
            # An attempt each, so that ranks learn of a failure before they meet again.
            step = self._step
            weights = self.attempt(step.weights)
            # Without weights it is off, and attempts nothing.
            self.attempt(lambda: self._after(before, weights or {}))
            sums = self.attempt(lambda: step.sums(before, weights or {}, number))
            if sums is not None:
                account = self.attempt(lambda: step.account(before, sums))
                if account is not None:
                    self.attempt(lambda: self._enter(account, by_formula=sums.by_formula))
            if self._live is not None:
                self._live.forwards = []

    def _plan(self, step: int) -> None:
        """Plans the next account; says once what one takes."""
        took = self.pace.spent - self._spent_before
        a_step = self.pace.plan(step, took)
        if not self._has_said_costs and distributed.rank() == 0:
            self._has_said_costs = True
            size = sum(share.size for share in self._step.shares.values())
            vectors = VECTORS + len(self._watched)
            pace = f"so many have one that they take {self.pace.share:.0%} of its time"
            if self.pace.every:
                pace = f"one in {self.pace.every} steps has one"
            _log.warning(
                "an account takes %.2g s, %.1f steps of this training, and about %.2g GB; %s",
                took,
                took / a_step,
                vectors * size * self._policy.dtype.itemsize / 1e9,
                pace,
            )

    def _prepare(self, step: int, loader: Any) -> None:
        trainer: Any = self.trainer
        model, wrapped = unwrapped(trainer), trainer.model_wrapped
        with passes_of_ours(model), callable_in_parts(model):
            self._policy = PolicyFunction(model, derivatives=False)
        functionals = [functional for _, functional in self._watched]
        parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        has_all_weights = is_whole(model)
        if has_all_weights:
            weights = {n: p.detach().to(self._policy.dtype) for n, p in parameters.items()}
            # Two answers of different length show whether a rule tells sequences apart.
            answers = [term.sequence for functional in functionals for term in functional.terms]
            answers.sort(key=lambda answer: len(answer.ids))
            with torch.random.fork_rng():
                self._route = GroupedGradients.build(
                    self._policy, weights, [answers[0], answers[-1]]
                )
        else:
            self._route = ShardedGradients.of(self._policy, tuple(parameters))
        dtypes = {local(parameter).dtype for parameter in parameters.values()}
        arguments = trainer.args
        self._sixteen_bit = arguments.bf16 or arguments.fp16 or dtypes != {torch.float32}
        self._batch_rows = BatchRows.begin(trainer, loader)
        self._names = SequenceNames(trainer.processing_class, self._examples, self._batch_rows)
        self._check = None
        if has_all_weights:  # elsewhere accounts are made by the model's own forwards
            self._check = SelfCheck(
                trainer, self._policy, functionals, parameters, coarse=self._sixteen_bit
            )
            self._check.optimizer(trainer.optimizer)
        if not trainer.is_deepspeed_enabled:
            self._optimizer_view = TrainerOptimizer(trainer, parameters)
        elif has_all_weights:
            self._optimizer_view = ZeroOptimizer(wrapped, parameters)
        else:
            self._optimizer_view = ZeroThreeOptimizer(wrapped, parameters)
        self._live = TrainerPasses(
            self._route,
            model,
            # Of a compiled model hooks are around the compiled call.
            wrapped if hasattr(wrapped, "_orig_mod") else model,
            arithmetic=trainer.compute_loss_context_manager,
            rounding=ROUNDED[self._sixteen_bit],
            temperature=float(getattr(trainer, "temperature", 1.0)),
            has_all_weights=has_all_weights,
        )
        self._step = TrainerStep(
            self._policy,
            self._route,
            self._live,
            self._optimizer_view,
            parameters,
            functionals,
            has_all_weights=has_all_weights,
            sixteen_bit=self._sixteen_bit,
        )
        if distributed.rank() == 0:
            watched = [row for row, _ in self._watched]
            self._accounts = AccountFolder(self._folder, watched, step)
            self.folder = self._accounts.folder

    def _before(self) -> BeforeStep:
        """The step between its gradient and its update."""
        assert self._live is not None and self._batch_rows is not None
        # By sequence of this rank's passes; `places`: of the tokens on which the loss depends.
        sequences: list[Sequenced] = []
        pushes: list[float] = []
        places: list[tuple[int, ...]] = []
        for forward in self._live.forwards:
            sequences += forward.sequences()
            pushes += forward.push.tolist()
            if self._check is not None:
                places += forward.pulled()
        if self._check is not None:
            tokens = [ids for ids, _ in sequences]
            self._check.tokens([*zip(tokens, places, strict=True)], self._batch_rows.answers())
        return self._step.read(self._names.labels(sequences, pushes))

    def _compared(self, before: BeforeStep) -> BeforeStep:
        """Adds up what ranks have read before the step; compares it with the trainer's scores."""
        distributed.add_up(before.start)
        if self._check is not None:
            self._check.before_step(before.start)
        return before

    def _after(self, before: BeforeStep, weights: NamedTensors) -> None:
        """This rank's passes after the step."""
        if self._check is not None:
            self._check.after_passes()
        self._step.read_end(before, weights)

    def _enter(self, account: StepAccount, *, by_formula: bool) -> None:
        """Joins the ranks' accounts, logs the sums and writes the lines."""
        ranks = distributed.gather((account.responses, account.lines, dict(account.blocks)))
        responses: list[Updating] = []
        for labels, _, _ in ranks:
            responses += labels
        blocks = {}
        for name in account.blocks:
            blocks[name] = torch.stack([of_rank[name] for _, _, of_rank in ranks]).sum(0)
        lines = torch.cat([of_rank for _, of_rank, _ in ranks])
        account = replace(account, responses=tuple(responses), lines=lines, blocks=blocks)
        # ⟨q̄, Δθ⟩ less all that has a name is rounding; only with all ranks' lines is it known.
        explained = (
            account.decay
            + account.carried_in
            + account.unexplained
            + account.together
            + account.lines.sum(0)
        )
        account = replace(account, rounding=account.predicted - explained)
        unread = self._checked(account, by_formula=by_formula)
        if self._accounts is not None:
            names = {label.id for label in account.responses} & self._names.rows.keys()
            rows = {name: self._names.rows[name] for name in sorted(names)}
            failed = {} if self._check is None else self._check.failed
            self._accounts.add(account, rows, "removal" if by_formula else "shares", failed)
            self._accounts.write_page()
        self._log(account, unread)

    def _checked(
        self, account: StepAccount, *, by_formula: bool
    ) -> Float[Tensor, " functionals"] | None:
        """What the trainer's own scores changed by beside the account; says what fails, once."""
        if self._check is None:
            return None
        earlier = set(self._check.failed)
        # What parts are small beside: the sum of all, without their signs.
        size = (
            account.lines.abs().sum(0)
            + account.together.abs()
            + account.decay.abs()
            + account.carried_in.abs()
            + account.unexplained.abs()
        )
        if by_formula and not self._sixteen_bit:
            self._check.parts(account.rounding, account.unexplained, size)
        unread = self._check.after_step(account.measured, size)
        for kind, text in self._check.failed.items():
            if kind not in earlier and distributed.rank() == 0:
                _log.warning("%s", text)
        return unread

    def _log(self, account: StepAccount, unread: Float[Tensor, " functionals"] | None) -> None:
        """Sums by side, through the trainer's log."""
        from transformers import Trainer

        parts = account.parts()
        if unread is not None:
            parts["unread"] = unread
        values = part_metrics(parts, [row.kind for row, _ in self._watched])
        # The base class's log, as TRL's begins its averages anew; the step's own log still comes.
        due = self.trainer.control.should_log
        Trainer.log(self.trainer, values)
        self.trainer.control.should_log = due


def _check_settings(trainer: Trainer) -> None:
    """Raises `ConfigError` for settings with which steps cannot be accounted for."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    stage = None if plugin is None else plugin.zero_stage
    remedy = "set stage 1, 2 or 3, or train with DDP"
    unknown_stage = plugin is not None and stage not in (1, 2, 3)
    problems = [(unknown_stage, "zero_optimization.stage", stage, remedy)]
    remedy = "forces tell sequences apart by their rows; turn off packing and padding_free"
    for name in ("packing", "padding_free"):
        # A trainer that has to ignore the argument says so by an attribute of this name.
        if bool(getattr(trainer.args, name, False)):
            problems.append((getattr(trainer, name, True), f"trainer.args.{name}", True, remedy))
    check_settings(*problems)


def _evaluated(
    trainer: Trainer, kinds: Sequence[str] | None, pairs: int, source: Source
) -> list[WatchedFunctional]:
    """The means over the answers that the trainer evaluates, or trains on, by kind."""
    rows, sequences = watched_answers(trainer, pairs)
    answers = list(zip(rows, sequences, strict=True))
    if not kinds:
        kinds = [kind for kind in ("chosen", "rejected") if any(row.kind == kind for row in rows)]
    # `check_kinds` looks at training rows; the answers keep their own split.
    as_training = [row.model_copy(update={"split": "train"}) for row in rows]
    check_kinds(kinds, as_training, "kinds")
    means = []
    for kind in kinds:
        answered = "chosen" if kind == ARGMAX else kind
        of_kind = [answer for answer in answers if answer[0].kind == answered]
        means += mean_of(f"{rows[0].split}/{kind}", kind, of_kind)
    return means + measured_means(kinds, answers, source, "kinds")
