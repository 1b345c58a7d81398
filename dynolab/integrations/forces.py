"""Forces in other people's trainers: `transformers.Trainer` and TRL's SFT, DPO and GRPO."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from transformers import TrainerCallback

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, write_rows
from dynolab.errors import ConfigError, check_installed
from dynolab.forces.function.blocks import block_columns
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.flat import flatten
from dynolab.forces.ledger.functional import Slopes, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.live import Forward, LiveGradients
from dynolab.forces.ledger.step_account import StepAccount, StepMade, account_of
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.forces.ledger.watched import check_kinds, training_means
from dynolab.forces.map.problem import Updating
from dynolab.forces.step.optimizers import OptimizerMap, UpdateFacts, optimizer_map
from dynolab.training.config import OptimizerConfig

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

UNEXPLAINED = 1e-3
"""Share of the gradient above which its sequences do not explain it."""

EXCERPT = 160  # characters of a sequence in tables


class ForceCallback(TrainerCallback):
    """Says at chosen steps which sequence of the batch moved which answers, and what else did.

    `Δq = Σ_i line_i + decay + momentum + residual` for the mean log-probability q of the watched
    answers of a kind, in nats. Sums over sequences that are pushed up (`chosen`) and down
    (`rejected`) go through the trainer's log, `ledger/<kind>/<part>`; every sequence's line goes to
    `folder` (`dynolab.results.ledger`), and at the end a page, `ledger.html`. Gradients are read
    from the trainer's own backward pass, whatever its loss. Training goes on as without the
    callback, to the bit.

    **Arguments:**

    - `trainer`: a `transformers.Trainer`, or one of TRL's, of a causal language model, in one
      process and float32.
    - `rows`: what is watched (`build_probes`, `read_rows(path, ProbeRow)`), split `train`.
    - `examples`: pairs that are trained on: their sequences are named by the pairs' ids, all others
      by a checksum of their text.
    - `every`: optimizer steps between accounts.
    - `kinds`: of the watched answers; each has an account.
    - `pairs`: watched pairs, the first ones, whose answers are averaged.
    - `folder`: default: `ledger` in the trainer's output folder.

    **Raises:** `ConfigError` for a trainer whose steps it cannot account for, and at the first
    account for a gradient that its sequences do not make up.
    """

    def __init__(
        self,
        trainer: Trainer,
        rows: Sequence[ProbeRow],
        *,
        examples: Sequence[Example] = (),
        every: int = 10,
        kinds: Sequence[str] = ("chosen", "rejected"),
        pairs: int = 8,
        folder: Path | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError("every", every, "must be 1 optimizer step or more")
        check_installed("ForceCallback", "plotly", "report")  # for the page, after training
        _check_trainer(trainer)
        check_kinds(kinds, rows, "kinds")
        self.trainer, self.every = trainer, every
        self.folder = folder or Path(str(trainer.args.output_dir)) / "ledger"
        self._rows = list(rows)
        self._kinds, self._pairs = tuple(kinds), pairs
        self._examples = {example.id: example for example in examples}
        self._texts: dict[str, str] = {}
        self._pending: _Pending | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks at the model and the optimizer."""
        model: Any = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self._policy = PolicyFunction(model)
        context = model.config.get_text_config().max_position_embeddings
        encoder = Encoder(self.trainer.processing_class, int(context), "drop")  # type: ignore[arg-type]
        self._watched = training_means(self._kinds, self._rows, encoder, self._pairs, "kinds")
        temperature = float(getattr(self.trainer, "temperature", 1.0))
        self._ids = self._ids_by_content()
        self._live = LiveGradients(self._policy, temperature)
        answers = [term.sequence for _, functional in self._watched for term in functional.terms]
        self._gradients = GroupedGradients.build(self._policy, self._weights(), answers[:2])
        self._tables = LedgerTables([row.name for row, _ in self._watched], whole=False)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the hooks where an account is due."""
        if state.global_step % self.every == 0:
            self._live.begin()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the sequences' gradients and the state before the step."""
        if state.global_step % self.every:
            return
        self._live.end()
        gradients = self._live.gradients()
        parameters = dict(self._policy.model.named_parameters())
        clipped = flatten(
            {
                name: torch.zeros_like(p) if (p := parameters[name]).grad is None else p.grad
                for name in self._live.names
            }
        )
        total = gradients.sum(0)
        # Groups of equal rewards have no gradient: such a step moves by momentum and decay alone.
        clip = float(clipped @ total / (total @ total)) if total.any() else 1.0
        left = (clipped - clip * total).norm()
        if not left <= UNEXPLAINED * clipped.norm():
            error = float(left / clipped.norm())
            raise ConfigError(
                "trainer",
                f"a gradient of which {error:.2g} is not made by its sequences' tokens",
                "train without auxiliary losses, soft prompts and shared experts",
            )
        labels = [label for forward in self._live.forwards for label in self._label(forward)]
        self._pending = _Pending(
            labels=tuple(labels),
            gradients=gradients,
            before=flatten(self._weights()).clone(),
            map=self._map(clip * total, clip),
            start=self._slopes(),
        )

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Accounts for the step that has just been made."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        step = StepMade(
            number=state.global_step,
            labels=pending.labels,
            gradients=pending.gradients,
            map=pending.map,
            change=flatten(self._weights()) - pending.before,
            blocks=block_columns(self._weights()),
        )
        account, _ = account_of(step, pending.start, self._slopes())
        self._tables.add(account)
        self._log(account)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Writes tables and page."""
        from dynolab.report.inputs.ledger import read_ledger
        from dynolab.report.ledger.page import write_ledger_page

        self.folder.mkdir(parents=True, exist_ok=True)
        self._tables.write(self.folder)
        write_rows(self.folder / "functionals.jsonl", [row for row, _ in self._watched])
        (self.folder / "ledger.json").write_text(self._tables.summary().model_dump_json(indent=1))
        unnamed = (Example(id=name, prompt=text, chosen="") for name, text in self._texts.items())
        write_rows(self.folder / "train.jsonl", [*self._examples.values(), *unnamed])
        ledger = read_ledger(self.folder, self.folder)
        write_ledger_page(ledger, "ledger", "", (), self.folder)

    def _weights(self) -> dict[str, Tensor]:
        """The trained parameters as they are now."""
        return {name: self._policy.weights[name] for name in self._live.names}

    def _slopes(self) -> Slopes:
        functionals = [functional for _, functional in self._watched]
        return slopes_of(functionals, self._gradients, self._weights())

    def _label(self, forward: Forward) -> list[Updating]:
        """What each sequence is, told apart by its tokens; its text goes into the tables."""
        tokenizer: Any = self.trainer.processing_class
        labels = []
        for ids, push in zip(forward.ids.tolist(), forward.push.tolist(), strict=True):
            read = [token for token in ids if token != tokenizer.pad_token_id]
            text = tokenizer.decode(read)  # the unknown token, too
            name = self._ids.get(self._content(read))
            if name is None:
                name = f"{zlib.crc32(text.encode()):08x}"
                self._texts[name] = text[-EXCERPT:]
            side: Literal["chosen", "rejected"] = "rejected" if push < 0 else "chosen"
            labels.append(Updating(name, side, tuple(ids)))
        return labels

    def _ids_by_content(self) -> dict[tuple[int, ...], str]:
        """Tokens of a sequence → the id of the pair that it is an answer of."""
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

    def _map(self, clipped: Tensor, clip: float) -> OptimizerMap:
        """The optimizer's step as one map of flat vectors."""
        optimizer: Any = self.trainer.optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        parameters = dict(self._policy.model.named_parameters())
        sizes = [parameters[name].numel() for name in self._live.names]
        maps = []
        for name, gradient in zip(self._live.names, clipped.split(sizes), strict=True):
            parameter = parameters[name]
            state = optimizer.state.get(parameter, {})
            group = groups.get(id(parameter), optimizer.param_groups[0])
            facts = UpdateFacts(
                step=int(state.get("step", 0)),
                learning_rate=float(group["lr"]),
                clip_factor=clip,
                optimizer=_config(optimizer, group),
            )
            tensors = {
                key: value.detach().flatten()
                for key, value in state.items()
                if isinstance(value, Tensor) and value.shape == parameter.shape
            }
            theta = parameter.detach().flatten()
            made = optimizer_map(facts, theta, tensors, gradient / clip)
            if parameter.grad is None or id(parameter) not in groups:  # torch leaves it alone
                still = torch.zeros_like(theta)
                made = replace(made, out=still, direct=still)
            maps.append(made)
        if len({made.carry for made in maps}) > 1:
            raise ConfigError("trainer.optimizer", "groups", "give all parameters one momentum")
        return OptimizerMap(
            carry=maps[0].carry,
            **{
                part: torch.cat([getattr(made, part) for made in maps])
                for part in ("momentum", "into", "pull", "out", "direct")
            },
        )

    def _log(self, account: StepAccount) -> None:
        """Sums by side, through the trainer's log."""
        from transformers import Trainer

        values = {
            f"ledger/{row.kind}/{part}": float(own[place])
            for part, own in account.parts().items()
            for place, (row, _) in enumerate(self._watched)
        }
        # The base class's log, as TRL's begins its averages anew; the step's own log still comes.
        due = self.trainer.control.should_log
        Trainer.log(self.trainer, values)
        self.trainer.control.should_log = due


@dataclass(frozen=True)
class _Pending:
    """A step between its gradient and its update."""

    labels: tuple[Updating, ...]
    gradients: Tensor
    before: Tensor
    map: OptimizerMap
    start: Slopes


def _config(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> OptimizerConfig:
    """One of torch's optimizers as ours; **Raises** `ConfigError` for any other."""
    kind = type(optimizer)
    field = "trainer.optimizer"
    for option in ("amsgrad", "maximize", "nesterov", "centered", "dampening"):
        if group.get(option):
            raise ConfigError(field, f"{kind.__name__} with {option}", f"turn {option} off")
    if kind is torch.optim.Adam and group["weight_decay"]:
        raise ConfigError(field, "Adam with weight_decay", "use AdamW, or no decay")
    common = {"learning_rate": group["lr"], "weight_decay": group.get("weight_decay", 0.0)}
    if kind is torch.optim.SGD:
        return OptimizerConfig.model_construct(name="sgd", momentum=group["momentum"], **common)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        return OptimizerConfig.model_construct(
            name="adamw", betas=group["betas"], epsilon=group["eps"], **common
        )
    if kind is torch.optim.RMSprop:
        return OptimizerConfig.model_construct(
            name="rmsprop",
            momentum=group["momentum"],
            smoothing=group["alpha"],
            epsilon=group["eps"],
            **common,
        )
    raise ConfigError(
        field, kind.__name__, "forces know torch's SGD, Adam, AdamW and RMSprop; set args.optim"
    )


def _check_trainer(trainer: Trainer) -> None:
    """Refuses trainers whose steps are not those of one process in float32."""
    args: Any = trainer.args
    refused = {
        "fsdp": (trainer.is_fsdp_enabled, "train in one process"),
        "deepspeed": (trainer.is_deepspeed_enabled, "train in one process"),
        "world_size": (args.world_size > 1, "train in one process"),
        "bf16": (args.bf16, "train in float32"),
        "fp16": (args.fp16, "train in float32"),
        "torch_compile": (args.torch_compile, "train without it"),
    }
    for name, (is_on, remedy) in refused.items():
        if is_on:
            raise ConfigError(f"trainer.args.{name}", getattr(args, name, True), remedy)
    if not hasattr(trainer.processing_class, "eos_token_id"):
        kind = type(trainer.processing_class).__name__
        raise ConfigError("trainer.processing_class", kind, "pass the model's tokenizer")
    model: Any = trainer.model
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(f"trainer.model {name}", parameter.dtype, "train in float32")
