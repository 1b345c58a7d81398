"""The engine on DeepSpeed ranks; the only module that imports DeepSpeed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynolab import distributed
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.training.config import LoopConfig
from dynolab.training.engine import SECOND_MOMENT, STATE_TENSORS, build_optimizer
from dynolab.training.shards import Stretch, load_shards, save_shard


def init_ranks() -> None:
    """Joins the process group of the ranks that torchrun started, for DeepSpeed too."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    # On CPUs init_distributed would compile a shared-memory op for minutes, and a killed build
    # leaves a lock on which later runs hang. The op serves inference only.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed compiles parts of its optimizer Muon where it is imported. That would load torch's
    # compiler, a third of the CPU time that a rank's start takes.
    before = os.environ.get("TORCHDYNAMO_DISABLE", "0")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    os.environ["TORCHDYNAMO_DISABLE"] = before
    distributed.join()
    deepspeed.init_distributed()


def zero_stage(config: LoopConfig) -> int:
    """The ZeRO stage that a training runs at."""
    stage, bf16 = config.engine.zero_stage, config.engine.dtype == "bf16"
    if bf16:
        # For stage 1 with gradients in fp32 DeepSpeed has another optimizer, which hides its parts.
        return max(stage, 2)
    # One rank has nobody to share with: ZeRO would keep a second copy of weights and gradients.
    return stage if config.engine.ranks > 1 or config.engine.offload else 0


def deepspeed_settings(config: LoopConfig) -> dict[str, Any]:
    """DeepSpeed's own configuration for a training run.

    Under bf16 gradients are added up and averaged over ranks in fp32, as the weights are kept.
    """
    bf16 = config.engine.dtype == "bf16"
    zero: dict[str, Any] = {"stage": zero_stage(config)}
    if config.engine.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": distributed.gpus_usable()}
    in_fp32 = {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    return {
        "train_batch_size": config.batch_size,
        "train_micro_batch_size_per_gpu": config.micro_examples,
        "gradient_accumulation_steps": config.accumulation,
        "gradient_clipping": config.clip_norm,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's own: DeepSpeed's would have to be built
        "zero_optimization": zero,
        "bf16": {"enabled": bf16},
        "steps_per_print": 2**31,
        **(in_fp32 if bf16 else {}),
    }


class DeepSpeedEngine:
    """ZeRO 0–3 on the ranks that torchrun started.

    **Arguments:**

    - `master`: fp32 weights by name, of a model that is in bf16 itself; default: the model's own.
    """

    def __init__(
        self, logits: ResponseLogits, config: LoopConfig, master: Mapping[str, Tensor] | None = None
    ) -> None:
        import deepspeed

        named = {name: p for name, p in logits.model.named_parameters() if p.requires_grad}
        self.logits, *_ = deepspeed.initialize(
            model=logits,
            optimizer=build_optimizer(config.optimizer, named.values()),
            model_parameters=list(named.values()),
            config=deepspeed_settings(config),
        )
        self._config = config
        self._stage = zero_stage(config)
        self._named = named
        if master is not None:
            self._set_master_weights(master)
        # DeepSpeed's backward divides by the accumulation steps and averages over ranks. The
        # loop's losses are shares that add up, so the scale undoes both.
        self._scale = config.accumulation * config.engine.ranks

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of this rank's share of the loss."""
        self.logits.backward(loss * self._scale)
        if not self.logits.is_gradient_accumulation_boundary():
            self.logits.step()  # counts the micro-step; updates nothing before the boundary

    def step(self, learning_rate: float) -> float:
        """Reduces, clips, updates; returns the global gradient norm before clipping."""
        for group in self.logits.optimizer.param_groups:
            group["lr"] = learning_rate
        # Without ZeRO, DeepSpeed clips with torch's function and does not keep the norm.
        if self._stage == 0:
            gradients = [p.grad for p in self._named.values() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients).item()
            self.logits.step()
            return norm
        self.logits.step()
        return float(self.logits.get_global_grad_norm())

    def master_weights(self) -> dict[str, Tensor]:
        """The fp32 weights, gathered on rank 0."""
        from deepspeed.utils import safe_get_full_fp32_param

        weights = {}
        for name, parameter in self._named.items():
            full = parameter if self._stage == 0 else safe_get_full_fp32_param(parameter)
            if distributed.rank() == 0:
                weights[name] = full.detach().to("cpu", copy=True)
        return weights

    def _set_master_weights(self, master: Mapping[str, Tensor]) -> None:
        for stretch in self._stretches():
            weights = master[stretch.name].view(-1)
            stretch.of(stretch.group).copy_(weights[stretch.start : stretch.start + stretch.size])

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gathers all weights on every rank; forwards inside it gather and free nothing.

        ZeRO-3's hooks are collective: without them ranks may run different numbers of forwards.
        """
        if self._stage != 3:
            yield
            return
        import deepspeed

        offload = self.logits.optimizer.parameter_offload
        parameters = list(offload.module.parameters())
        with deepspeed.zero.GatheredParameters(parameters):
            for parameter in parameters:
                parameter.ds_active_sub_modules.clear()
            offload._remove_module_hooks()
            offload.forward_hooks, offload.backward_hooks = [], []
            try:
                yield
            finally:
                offload.setup_zero_stage3_hooks()

    def optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer's tensors, gathered on rank 0."""
        if not self.logits.basic_optimizer.state:
            return {}
        states: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self._named.items():
            state = {
                key: self._state_tensor(parameter, key)
                for key in STATE_TENSORS[self._config.optimizer.name]
            }
            if distributed.rank() == 0:
                states[name] = {
                    key: tensor.detach().to("cpu", copy=True).view(self._shape(name))
                    for key, tensor in state.items()
                    if tensor is not None
                }
        return states

    def second_moments(self) -> dict[str, Tensor]:
        """The optimizer's second moments, gathered on every rank; empty before its first step."""
        key = SECOND_MOMENT.get(self._config.optimizer.name)
        if key is None or not self.logits.basic_optimizer.state:
            return {}
        moments = {name: self._state_tensor(p, key) for name, p in self._named.items()}
        return {
            name: moment.view(self._shape(name))
            for name, moment in moments.items()
            if moment is not None
        }

    def _shape(self, name: str) -> torch.Size:
        parameter = self._named[name]
        return getattr(parameter, "ds_shape", parameter.shape)

    def _state_tensor(self, parameter: Tensor, key: str) -> Tensor | None:
        from deepspeed.utils import safe_get_full_optimizer_state

        if key == "momentum_buffer" and self._config.optimizer.momentum == 0:
            return None
        if self._stage == 0:
            return self.logits.optimizer.state[parameter][key]
        return safe_get_full_optimizer_state(parameter, key)

    def save(self, folder: Path) -> None:
        """Writes this rank's share of the master weights and the optimizer state.

        Without ZeRO all ranks hold the same, and the first one writes it.
        """
        if self._stage > 0 or distributed.rank() == 0:
            save_shard(self._stretches(), self.logits.basic_optimizer, folder)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote, on any number of ranks at any ZeRO stage.

        Updates the weights that forward uses.
        """
        load_shards(self._stretches(), self.logits.basic_optimizer, folder)
        self._follow_master_weights()

    def _stretches(self) -> Iterator[Stretch]:
        """What this rank's optimizer updates of the fp32 weights, padding left out."""
        zero = self.logits.optimizer
        parameter: Any  # ZeRO gives it attributes
        for name, parameter in self._named.items():
            if self._stage == 0:
                yield Stretch(name, 0, parameter.numel(), parameter)
            elif self._stage == 3:
                number, offset, most = zero.grad_position[zero.get_param_id(parameter)]
                start = distributed.rank() * most
                size = min(most, parameter.ds_numel - start)
                if size > 0:
                    group = zero.fp32_partitioned_groups_flat[number]
                    yield Stretch(name, start, size, group, offset)
            elif (fragments := parameter._hp_mapping) is not None:
                group = zero.single_partition_of_fp32_groups[fragments.param_group_index]
                mine, there = fragments.lp_fragment_address, fragments.hp_fragment_address
                yield Stretch(name, mine.start, mine.numel, group, there.start)

    def _follow_master_weights(self) -> None:
        """Copies the master weights into the working weights that forwards use."""
        zero, stage = self.logits.optimizer, self._stage
        if stage in (1, 2):
            zero.update_lp_params()
            if self.logits.basic_optimizer.state:
                # The next step would do this, but a record may read the state before.
                zero._lazy_init_hp_params_optimizer_state()
        elif stage == 3:
            zero.checkpoint_event_prologue()  # partitions the small weights kept on every rank
            for working, master in zip(
                zero.fp16_partitioned_groups_flat, zero.fp32_partitioned_groups_flat, strict=True
            ):
                working.data.copy_(master.data)
            zero.checkpoint_event_epilogue()  # gathers them again
