"""Forces in other people's trainers: `transformers.Trainer` and TRL's of causal language models."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import Example, ProbeRow
from dynolab.errors import check_installed, check_settings
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import SLICE, NamedTensors, block_of, flatten, products
from dynolab.forces.ledger.functional import (
    Functional,
    Slopes,
    WatchedFunctional,
    check_kinds,
    slopes_of,
    training_means,
)
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.step_account import SIDES, Change, StepAccount
from dynolab.forces.ledger.trainer_passes import SequenceLines, TrainerPasses
from dynolab.forces.map.weighted import Updating
from dynolab.forces.step.optimizers import Clipping, Removal, UpdateFacts
from dynolab.integrations.accounts import AccountFolder
from dynolab.integrations.optimizer import (
    FIRST_MOMENTS,
    SECOND_MOMENTS,
    Given,
    Held,
    Part,
    TrainerHeld,
    ZeroHeld,
    ZeroThreeHeld,
    around_next_step,
    config_of,
)
from dynolab.integrations.pace import Pace
from dynolab.integrations.rows import BatchRows
from dynolab.integrations.self_check import SelfCheck
from dynolab.integrations.sharded import (
    ShardedGradients,
    Share,
    at_weights,
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
from dynolab.results.ledger import FunctionalRow
from dynolab.results.study import ARGMAX
from dynolab.training.step_record import SECOND_MOMENT_AFTER, at_least_rounding

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

ROUNDED = {True: 0.05, False: 1e-3}
"""What rounding may leave of a parameter's part, as a share of its sequences' lines, under 16-bit
arithmetic and without; more of it is a part that no sequence explains."""

COARSE = {True: 2**-8, False: 1e-6}
"""What it may leave where lines cancel, as a share of `Σ_j |v_j g_j|` over its numbers."""

EXCERPT = 160  # characters of a sequence in tables

VECTORS = 5
"""As long as the trained weights, that an account holds: the weights before the step, its gradient
and both moments, and the gradients of sequences by one parameter; two more for each functional."""

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
      ones that are watched.
    - `pairs`: watched pairs, the first ones, whose answers are averaged.
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
        folder: Path | None = None,
    ) -> None:
        check_installed("ForceCallback", "plotly", "report")  # for the page, after training
        check_trainer(trainer, "forces", sharded=True)
        plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
        stage = None if plugin is None else plugin.zero_stage
        packed = "forces tell sequences apart by their rows; turn off packing and padding_free"
        check_settings(
            (
                plugin is not None and stage not in (1, 2, 3),
                "zero_optimization.stage",
                stage,
                "set stage 1, 2 or 3, or train with DDP",
            ),
            *(
                # A trainer that ignores its argument has another value of its own.
                (getattr(trainer, name, asked), f"trainer.args.{name}", True, packed)
                for name in ("packing", "padding_free")
                if (asked := bool(getattr(trainer.args, name, False)))
            ),
        )
        self.trainer, self.pace = trainer, Pace(share, every)
        self.folder = folder or Path(str(trainer.args.output_dir)) / "ledger"
        if rows is None:
            answers, sequences = watched_answers(trainer, pairs)
            watched_kinds = [row.kind for row in answers]
            self._kinds = tuple(kinds or (k for k in ("chosen", "rejected") if k in watched_kinds))
            as_training = [row.model_copy(update={"split": "train"}) for row in answers]
            check_kinds(self._kinds, as_training, "kinds")
            self._watched = [_mean(kind, answers, sequences) for kind in self._kinds]
        else:
            self._kinds = tuple(kinds or ("chosen", "rejected"))
            encoder = Encoder(trainer.processing_class, context_of(trainer), "drop")  # type: ignore[arg-type]
            self._watched = training_means(self._kinds, rows, encoder, pairs, "kinds")
        self._examples = {example.id: example for example in examples}
        self._rows_by_name: dict[str, Example] = {}
        self._folder = self.folder
        self._due = False
        self._said = False
        self._before_this_one = 0.0
        self._optimizer_view: Held | None = None
        self._batch_rows: BatchRows | None = None
        self._check: SelfCheck | None = None
        self._pending: _Pending | None = None
        self._accounts: AccountFolder | None = None
        self._live: TrainerPasses | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks at model, rows and optimizer, and tries the model's rules against autograd."""
        self.off, self._pending, self._said = "", None, False
        loader = kwargs.get("train_dataloader")
        self.pace.begin(state.global_step)
        with self.pace.working():
            self.attempt(lambda: self._prepare(state.global_step, loader))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the hooks where an account is due."""
        live = self._live
        self._due = live is not None and not self.off and self.pace.due(state.global_step)
        if live is not None and self._due:
            self._before_this_one = self.pace.spent
            with self.pace.working():
                if self._check is not None:
                    self.attempt(self._check.before_passes)
            self.attempt(live.begin)
            if self.trainer.is_deepspeed_enabled and not self.off:
                around_next_step(
                    self.trainer.model_wrapped,
                    self._before_step,
                    lambda: self._after_step(state.global_step),
                )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the sequences' gradients and the state before the step."""
        if not self.trainer.is_deepspeed_enabled and self._due:
            self._before_step()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Accounts for the step that has just been made."""
        self._after_step(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Plans the next account, by what this one took."""
        if self._due:
            self._due = False
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
        self._pending = None
        if self._live is not None:
            self._live.end()
            self._live.forwards = []

    def _before_step(self) -> None:
        with self.pace.working():
            self.attempt(self._take)
            self._pending = self.attempt(self._before)

    def _after_step(self, step: int) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        with self.pace.working():
            weights = self.attempt(self._weights)
            made = self.attempt(lambda: self._lines(pending, weights or {}, step))
            if made is not None:
                account = self.attempt(lambda: self._account(pending, made))
                if account is not None:
                    self.attempt(lambda: self._enter(account, by_formula=made.by_formula))
            if self._live is not None:
                self._live.forwards = []

    def _plan(self, step: int) -> None:
        """Plans the next account; says once what one takes."""
        took = self.pace.spent - self._before_this_one
        a_step = self.pace.plan(step, took)
        if not self._said and distributed.rank() == 0:
            self._said = True
            size = sum(share.size for share in self._shares.values()) * self._policy.dtype.itemsize
            _log.warning(
                "an account takes %.2g s, %.1f steps of this training, and about %.2g GB; %s",
                took,
                took / a_step,
                (VECTORS + 2 * len(self._watched)) * size / 1e9,
                f"one in {self.pace.every} steps has one"
                if self.pace.every
                else f"so many have one that they take {self.pace.share:.0%} of its time",
            )

    def _prepare(self, step: int, loader: Any) -> None:
        trainer: Any = self.trainer
        model, wrapped = unwrapped(trainer), trainer.model_wrapped
        with passes_of_ours(model), callable_in_parts(model):
            self._policy = PolicyFunction(model, derivatives=False)
        answers = [term.sequence for _, functional in self._watched for term in functional.terms]
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._is_whole = is_whole(model)
        if self._is_whole:
            weights = {name: p.detach().to(self._policy.dtype) for name, p in trained.items()}
            # Two answers of different length show whether a rule tells sequences apart.
            by_length = sorted(answers, key=lambda answer: len(answer.ids))
            with torch.random.fork_rng():
                self._route = GroupedGradients.build(
                    self._policy, weights, [by_length[0], by_length[-1]]
                )
        else:
            self._route = ShardedGradients.of(self._policy, tuple(trained))
        self._parameters = trained
        self._shares = {name: Share.of(parameter) for name, parameter in trained.items()}
        self._batch_rows = BatchRows.begin(trainer, loader)
        self._check = None
        if self._is_whole:  # elsewhere accounts are made by the model's own forwards
            functionals = [functional for _, functional in self._watched]
            coarse = self._sixteen_bit()
            self._check = SelfCheck(trainer, self._policy, functionals, trained, coarse=coarse)
            self._check.optimizer(self.trainer.optimizer)
        if trainer.is_deepspeed_enabled:
            kind = ZeroHeld if self._is_whole else ZeroThreeHeld
            self._optimizer_view = kind(wrapped, self._parameters)
        else:
            self._optimizer_view = TrainerHeld(trainer, self._parameters)
        self._live = TrainerPasses(
            self._route,
            model,
            wrapped if hasattr(wrapped, "_orig_mod") else model,
            arithmetic=trainer.compute_loss_context_manager,
            rounding=ROUNDED[self._sixteen_bit()],
            temperature=float(getattr(trainer, "temperature", 1.0)),
            whole=self._is_whole,
        )
        self._by_content = self._ids_by_content()
        if distributed.rank() == 0:
            watched = [row for row, _ in self._watched]
            self._accounts = AccountFolder(self._folder, watched, step)
            self.folder = self._accounts.folder

    def _take(self) -> None:
        """The passes that this rank's step is made of, before ranks meet."""
        assert self._live is not None
        self._live.made()

    def _before(self) -> _Pending:
        """The step between its gradient and its update."""
        assert self._live is not None and self._optimizer_view is not None
        assert self._batch_rows is not None
        given, weights = self._optimizer_view.given(), self._weights()
        before = flatten(weights)
        forwards = self._live.forwards
        sequences = [sequence for forward in forwards for sequence in forward.sequences()]
        pushes = [push for forward in forwards for push in forward.push.tolist()]
        numbers = self._batch_rows.numbers(sequences)
        start = self._slopes(weights)
        if self._check is not None:
            self._check.before_step(start.values)
            places = [places for forward in forwards for places in forward.pulled()]
            tokens = [ids for ids, _ in sequences]
            self._check.tokens([*zip(tokens, places, strict=True)], self._batch_rows.answers())
        return _Pending(
            labels=tuple(map(self._label, sequences, pushes, numbers)),
            given=replace(given, gradients={}),
            before=before,
            parts=self._parts(self._optimizer_view, before, given),
            start=start,
        )

    def _sixteen_bit(self) -> bool:
        weights = {local(p).dtype for p in self._parameters.values()}
        return self.trainer.args.bf16 or self.trainer.args.fp16 or weights != {torch.float32}

    def _lines(self, pending: _Pending, weights: NamedTensors, step: int) -> _Made:
        """What this rank finds of the step that led to some weights.

        The slopes before the step are let go of.
        """
        assert self._live is not None
        start, pending.start = pending.start, None
        assert start is not None
        # In the memory of the slopes before the step: their mean, which stands for both ends.
        end = self._slopes(weights, into=start.gradients)
        end.gradients.div_(2)
        change = Change(weights, pending.before)
        parts, by_formula = self._realised(pending, change)
        sizes = [share.size for share in self._shares.values()]
        slopes = dict(zip(self._shares, end.gradients.split(sizes, dim=1), strict=True))
        given, count = pending.given, len(self._watched)

        def removal(name: str) -> Removal:
            share, part = self._shares[name], parts[name].gathered(self._shares[name])
            clip_factor = given.clip if by_formula else 1.0
            everything = part.at(slice(None))
            return Removal(everything, part.linear, clip_factor, share.gathered(slopes[name]))

        with (
            at_weights(self._parameters, pending.before),
            passes_of_ours(self._policy.model),
        ):
            lines = self._live.lines(
                removal,
                count,
                given.clipping if by_formula else Clipping(),
                given.clip if by_formula else 1.0,
                distributed.world_size() * given.scale,
            )
        return _Made(
            step, start.values, end.values, self._in_step(parts, slopes, change), by_formula, lines
        )

    def _in_step(
        self,
        parts: Mapping[str, Part],
        slopes: Mapping[str, Float[Tensor, "functionals size"]],
        change: Change,
    ) -> dict[str, Float[Tensor, "functionals 5"]]:
        """By parameter, this rank's shares of: decay, earlier momentum, the real change, what the
        gradient did, and what it would have done had all its numbers pulled the same way."""
        sums_of, stop = {}, 0
        for name, part in parts.items():
            start, stop = stop, stop + len(part.theta)
            sums = slopes[name].new_zeros(len(slopes[name]), 5, dtype=torch.float64)
            for first in range(start, stop, SLICE):
                columns = slice(first, min(first + SLICE, stop))
                inside = slice(columns.start - start, columns.stop - start)
                made, along = part.at(inside), slopes[name][:, inside]
                by_gradient = made.scale * made.gradient
                rows = [
                    made.direct - made.out * made.pull,
                    -made.out * made.carry * made.momentum,
                    change.at(columns),
                    -by_gradient,
                ]
                sums[:, :4] += products(along, torch.stack(rows))
                sums[:, 4] += products(along.abs(), by_gradient.abs()[None])[:, 0]
            sums_of[name] = sums
        return sums_of

    def _account(self, pending: _Pending, made: _Made) -> StepAccount:
        """This rank's account of the step, with all ranks' sums over parameters."""
        in_step = self._over_shares(torch.stack(list(made.in_step.values())))
        decay, carried_in, predicted, _, _ = in_step.sum(0).T
        lines = torch.stack([of_parameter.lines for of_parameter in made.lines.values()]).sum(0)
        shares = torch.stack([of_parameter.shares for of_parameter in made.lines.values()]).sum(0)
        of_all = distributed.add_up(shares.sum(1))
        if made.by_formula:
            unexplained = self._beside(made.lines, in_step)
        else:  # what the optimizer did beside the gradient is no rounding
            unexplained = predicted - decay - carried_in - of_all
        return StepAccount(
            step=made.step,
            responses=pending.labels,
            lines=lines.T,
            decay=decay,
            carried_in=carried_in,
            before=made.before,
            after=made.after,
            predicted=predicted,
            rounding=torch.zeros_like(predicted),
            unexplained=unexplained,
            together=of_all - distributed.add_up(lines.sum(1)),
            blocks=self._blocks(pending.labels, made.lines),
        )

    def _beside(
        self,
        sequence_lines: Mapping[str, SequenceLines],
        in_step: Float[Tensor, "parameters functionals 5"],
    ) -> Float[Tensor, " functionals"]:
        """What the gradient did beside its sequences, where that is more than rounding."""
        totals, reach = in_step[..., 3], in_step[..., 4]
        shares = [lines.shares for lines in sequence_lines.values()]
        sums = distributed.add_up(torch.stack([share.sum(1) for share in shares]))
        sizes = distributed.add_up(torch.stack([share.abs().sum(1) for share in shares]))
        beside, coarse = totals - sums, self._sixteen_bit()
        bound = ROUNDED[coarse] * sizes + COARSE[coarse] * reach + 1e-9 * reach.sum(0)
        return torch.where(beside.abs() > bound, beside, 0.0).sum(0)

    def _blocks(
        self, labels: Sequence[Updating], sequence_lines: Mapping[str, SequenceLines]
    ) -> dict[str, Float[Tensor, "functionals 2"]]:
        """The lines of each side through the parameters of a block."""
        sides = [[label.side == side for label in labels] for side in SIDES]
        blocks: dict[str, Float[Tensor, "functionals 2"]] = {}
        for name, (lines, _) in sequence_lines.items():
            by_side = torch.stack([lines[:, side].sum(1) for side in sides], 1)
            blocks[block_of(name)] = blocks.get(block_of(name), 0) + by_side
        return blocks

    def _over_shares(self, mine: Float[Tensor, "*sums"]) -> Float[Tensor, "*sums"]:
        """A sum over the parameters, of which each rank has a share."""
        return mine if self._is_whole else distributed.add_up(mine)

    def _enter(self, account: StepAccount, *, by_formula: bool) -> None:
        """Joins the ranks' accounts, logs the sums and writes the lines."""
        ranks = distributed.gather((account.responses, account.lines, dict(account.blocks)))
        account = replace(
            account,
            responses=tuple(label for labels, _, _ in ranks for label in labels),
            lines=torch.cat([lines for _, lines, _ in ranks]),
            blocks={
                name: torch.stack([blocks[name] for _, _, blocks in ranks]).sum(0)
                for name in account.blocks
            },
        )
        made = account.decay + account.carried_in + account.unexplained
        made = made + account.together + account.lines.sum(0)
        account = replace(account, rounding=account.predicted - made)
        unread = self._checked(account, by_formula=by_formula)
        if self._accounts is not None:
            known_rows = self._rows_by_name | self._examples
            names = {label.id for label in account.responses} & known_rows.keys()
            rows = {name: known_rows[name] for name in sorted(names)}
            said = {} if self._check is None else self._check.said
            self._accounts.add(account, rows, "removal" if by_formula else "shares", said)
            self._accounts.write_page()
        self._log(account, unread)

    def _checked(
        self, account: StepAccount, *, by_formula: bool
    ) -> Float[Tensor, " functionals"] | None:
        """What the trainer's own scores changed by beside the account; says what fails, once."""
        if self._check is None:
            return None
        said = set(self._check.said)
        size = account.lines.abs().sum(0) + account.together.abs()
        size = size + account.decay.abs() + account.carried_in.abs() + account.unexplained.abs()
        if by_formula and not self._sixteen_bit():
            self._check.parts(account.rounding, account.unexplained, size)
        unread = self._check.after_step(account.measured, size)
        for kind, text in self._check.said.items():
            if kind not in said and distributed.rank() == 0:
                _log.warning("%s", text)
        return unread

    def _weights(self) -> NamedTensors:
        """This rank's parts of the trained parameters as they are now."""
        assert self._optimizer_view is not None
        return {
            name: weight.to(self._policy.dtype)
            for name, weight in self._optimizer_view.weights().items()
        }

    def _slopes(
        self,
        weights: NamedTensors,
        into: Float[Tensor, "functionals size"] | None = None,
    ) -> Slopes:
        functionals = [functional for _, functional in self._watched]
        with passes_of_ours(self._policy.model):
            return slopes_of(functionals, self._route, weights, into=into)

    def _label(
        self, sequence: tuple[tuple[int, ...], int], push: float, number: int | None
    ) -> Updating:
        """What a sequence of a row is; without a row its text goes into the tables."""
        ids, _ = sequence
        side: Literal["chosen", "rejected"] = "rejected" if push < 0 else "chosen"
        name = self._by_content.get(self._content(ids))
        if name is None and number is not None:
            assert self._batch_rows is not None
            name = self._batch_rows.rows.name(number)
            if name not in self._rows_by_name:
                self._rows_by_name[name] = self._batch_rows.rows.example(number)
        if name is None:
            tokenizer: Any = self.trainer.processing_class
            text = tokenizer.decode(ids)  # the unknown token, too
            name = f"{zlib.crc32(text.encode()):08x}"
            self._rows_by_name[name] = Example(id=name, prompt=text[-EXCERPT:], chosen="")
        return Updating(name, side, ids)

    def _ids_by_content(self) -> dict[tuple[int, ...], str]:
        """Tokens of a sequence → the id of the given pair that it is an answer of."""
        tokenizer: Any = self.trainer.processing_class
        return {
            self._content(tokenizer(example.prompt + response)["input_ids"]): example.id
            for example in self._examples.values()
            for response in (example.chosen, example.rejected)
            if response
        }

    def _content(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Tokens without those that trainers add at the ends."""
        tokenizer: Any = self.trainer.processing_class
        added = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        return tuple(token for token in ids if token not in added)

    def _parts(
        self, optimizer: Held, before: Float[Tensor, " parameters"], given: Given
    ) -> dict[str, Part]:
        """What the optimizer's step is made of, parameter by parameter."""
        states = optimizer.states()
        sizes = [share.size for share in self._shares.values()]
        parts = {}
        for name, theta in zip(self._shares, before.split(sizes), strict=True):
            options, state, still = states[name]
            config, facts = config_of(optimizer.optimizer, options), None
            if config is not None:
                facts = UpdateFacts(
                    step=int(state.get("step", 0)),
                    learning_rate=float(options["lr"]),
                    clip_factor=given.clip,
                    optimizer=config,
                    rounded=self._sixteen_bit(),
                )
            moments = {
                key: value.clone()
                for key, value in state.items()
                if key in (*FIRST_MOMENTS, *SECOND_MOMENTS)
            }
            gradient = given.gradients[name]
            if facts is None:  # an optimizer of unknown form may write into it
                gradient = gradient.clone()
            parts[name] = Part(facts, theta, moments, gradient, given.factor, still)
        return parts

    def _realised(self, pending: _Pending, change: Change) -> tuple[dict[str, Part], bool]:
        """The optimizer's step by parameter, and whether it is of known form.

        Of one of unknown form each part is that along the gradient.
        """
        parts = pending.parts
        carries = {part.at(slice(0, 0)).carry for part in parts.values()}
        if len(carries) == 1 and all(part.facts is not None for part in parts.values()):
            assert self._optimizer_view is not None
            by_name = {}
            for name, (_, now, _) in self._optimizer_view.states().items():
                by_name[name] = parts[name]
                if key := next((key for key in SECOND_MOMENTS if key in now), None):
                    after = now[key]
                    if self._sixteen_bit():
                        after = at_least_rounding(after)
                    state = {**parts[name].state, SECOND_MOMENT_AFTER: after}
                    by_name[name] = replace(parts[name], state=state)
            return by_name, True
        realised, stop = {}, 0
        for name, part in parts.items():
            start, stop = stop, stop + len(part.given)
            both = torch.stack([change.at(slice(start, stop)), part.gradient])
            along, square = self._over_shares(products(both, part.gradient[None])[:, 0]).tolist()
            rate = max(0.0, -along / square) if square else 0.0
            realised[name] = replace(part, facts=None, rate=rate)
        return realised, False

    def _log(self, account: StepAccount, unread: Float[Tensor, " functionals"] | None) -> None:
        """Sums by side, through the trainer's log."""
        from transformers import Trainer

        values = {
            f"ledger/{row.kind}/{part}": float(nats[place])
            for part, nats in account.parts().items()
            for place, (row, _) in enumerate(self._watched)
        }
        if unread is not None:
            kinds = [row.kind for row, _ in self._watched]
            named = zip(kinds, unread.tolist(), strict=True)
            values |= {f"ledger/{kind}/unread": nats for kind, nats in named}
        # The base class's log, as TRL's begins its averages anew; the step's own log still comes.
        due = self.trainer.control.should_log
        Trainer.log(self.trainer, values)
        self.trainer.control.should_log = due


def _mean(kind: str, rows: Sequence[ProbeRow], sequences: Sequence[Encoded]) -> WatchedFunctional:
    """The mean over the answers of a kind."""
    asked = "chosen" if kind == ARGMAX else kind
    answers = [(row, ids) for row, ids in zip(rows, sequences, strict=True) if row.kind == asked]
    split, name = answers[0][0].split, f"{answers[0][0].split}/{kind}"
    functional = Functional.mean(name, [ids for _, ids in answers], likeliest=kind == ARGMAX)
    pairs = tuple(row.pair_id for row, _ in answers)
    return FunctionalRow(name=name, split=split, kind=kind, pairs=pairs), functional


@dataclass
class _Pending:
    """A step between its gradient and its update.

    Of each trained parameter `parts` hold what its step is made of, this rank's shares; `given`:
    how the step clips and scales its gradients, without these.
    """

    labels: tuple[Updating, ...]
    given: Given
    before: Float[Tensor, " parameters"]
    parts: Mapping[str, Part]
    start: Slopes | None


@dataclass(frozen=True)
class _Made:
    """What a rank finds of a step.

    `before`, `after`: the functionals at both ends; `in_step`: sums by its shares of each parameter
    (`_in_step`); `by_formula`: the optimizer is of known form; `lines`: of its sequences.
    """

    step: int
    before: Float[Tensor, " functionals"]
    after: Float[Tensor, " functionals"]
    in_step: Mapping[str, Float[Tensor, "functionals 5"]]
    by_formula: bool
    lines: Mapping[str, SequenceLines]
