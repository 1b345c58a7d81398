"""A force map shared by several ranks, as files: `job.json`, with tensors beside it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file

from dynolab.data.encode import Encoded
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import NamedTensors, Weights
from dynolab.forces.map.analysis import Question
from dynolab.forces.map.force_map import ForceMap, force_map
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import build_objective
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.training.step_record import Recorded


class MapJob(BaseModel):
    """A force map of the model in the folder `model`, to be filled in `folder`.

    `adapter`: the folder of its adapters, if only they move.
    `parameters`: those that move; None for all that are trained.
    `tensors`: a safetensors file with a realised step's frozen map and weights; None for a
    gradient step of `learning_rate`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: Path
    adapter: Path | None
    observed: list[Encoded]
    updating: list[Recorded]
    objective: ObjectiveConfig
    learning_rate: float
    tensors: Path | None
    memory_bytes: int | None
    folder: Path
    parameters: list[str] | None

    @classmethod
    def of(
        cls,
        question: Question,
        *,
        model: Path,
        adapter: Path | None,
        tensors: Path,
        folder: Path,
        memory_bytes: int | None,
    ) -> MapJob:
        """The job of a question; writes the question's tensors to `tensors`."""
        realised = isinstance(question.update, FrozenUpdate)
        if isinstance(question.update, FrozenUpdate):
            parts = {
                "scale": question.update.scale,
                "at": question.at or {},
            }
            save_file(_flat(parts), tensors)
        return cls(
            model=model,
            adapter=adapter,
            observed=[answer for _, answer in question.observed],
            updating=list(question.updating),
            objective=question.objective,
            learning_rate=question.learning_rate,
            tensors=tensors if realised else None,
            memory_bytes=memory_bytes,
            folder=folder,
            parameters=None if question.parameters is None else sorted(question.parameters),
        )


def fill_map(job: MapJob, policy: PolicyFunction) -> ForceMap:
    """Fills this rank's part of the map; every rank calls it."""
    update: float | FrozenUpdate = job.learning_rate
    at = None
    if job.tensors is not None:
        parts: dict[str, NamedTensors] = {"scale": {}, "at": {}}
        for flat, tensor in load_file(job.tensors, device=str(policy.device)).items():
            part, name = flat.split("|", 1)
            parts[part][name] = tensor
        update, at = FrozenUpdate(parts["scale"]), parts["at"]
    return force_map(
        policy,
        job.observed,
        job.updating,
        build_objective(job.objective),
        update=update,
        at=at,
        memory_bytes=job.memory_bytes,
        folder=job.folder,
        over_ranks=True,
        parameters=job.parameters,
        by_block=True,
    )


def _flat(parts: dict[str, Weights]) -> NamedTensors:
    return {
        f"{part}|{name}": tensor.detach().cpu().clone().contiguous()
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }
