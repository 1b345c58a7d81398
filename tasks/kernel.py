"""Stage `kernel`: how strongly answers are coupled at each checkpoint, and whether it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from dynolab.costs.machines import StageCost
from dynolab.data.encode import Encoded
from dynolab.data.rows import Example, ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces.kernel.size import KernelSizes, kernel_sizes
from dynolab.forces.kernel.stability import kernel_stability
from dynolab.results.forces import AgreementRow, KernelFindings, KernelSizeRow
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.costs import AnalysisCopies, Costs, Reads
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import recorded_step
from tasks.shared.selection import SelectionConfig, observed_rows, updating_rows

MODEL = "model_"


class KernelConfig(SelectionConfig):
    """Which answers' coupling is measured, how exactly, and what counts as stable.

    Of the updating pairs, only the chosen answers are used.
    """

    kinds: tuple[str, ...] = Field(
        ("chosen",), min_length=1, description="Kinds of answers that are observed."
    )
    threshold: float = Field(
        0.8, gt=0, lt=1, description="Rank correlation above which the kernel counts as stable."
    )
    rank: int = Field(8, ge=0, description="Leading directions of K that are measured exactly.")
    probes: int = Field(8, ge=2, description="Random vectors that estimate the rest of K.")
    seed: int = Field(0, ge=0, description="Seed of the random vectors.")
    memory_bytes: int = Field(
        2**30,
        ge=2**20,
        description="Memory for directions and images; raised if the longest answer needs more.",
    )


class KernelJob(KernelConfig):
    """The checkpoints at which the kernel is measured: recorded steps or trained models."""

    labels: tuple[str, ...] = Field(description="The checkpoints in order.")
    steps: dict[str, int | None] = Field(
        {}, description="Checkpoint → recorded step; null: the trained model."
    )


def measure_kernel(work: Work[KernelJob]) -> dict[str, float]:
    """Reads input `data`, `model_<label>` for every checkpoint, and what trainings with a recorded
    step read.

    Results: `sizes.jsonl`, ‖K‖ of every pair at every checkpoint, and `kernel.json`, the rank
    correlations between checkpoints with their verdicts.
    """
    config, data = work.config, work.input_folder("data")
    observed = observed_rows(data, config)
    updating = updating_rows(data, config)
    with work.shown(len(config.labels)) as progress:
        observed, updating, encoded = _fitting_rows(work, observed, updating)
        sizes: dict[str, KernelSizes] = {}
        for number, label in enumerate(config.labels, start=1):
            sizes[label] = _sizes(work, label, *encoded[label])
            progress.update(number, label)
        rows = [
            KernelSizeRow(
                label=label,
                observed_id=row.pair_id,
                split=row.split,
                kind=row.kind,
                updating_id=updating_row.id,
                raw=float(size.raw[o, u]),
                raw_error=float(size.raw_error[o, u]),
                centred=float(size.centred[o, u]),
                centred_error=float(size.centred_error[o, u]),
            )
            for label, size in sizes.items()
            for o, row in enumerate(observed)
            for u, updating_row in enumerate(updating)
        ]
        findings = _findings(work, sizes)
        work.write_tables(sizes=rows)
        (work.output / "kernel.json").write_text(findings.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / "kernel.json", "forces")
    work.log_tables(kernel=rows, stability=findings.agreements)
    return work.log_metrics(_metrics(sizes, findings.agreements))


def _fitting_rows(
    work: Work[KernelJob], observed: Sequence[ProbeRow], updating: Sequence[Example]
) -> tuple[list[ProbeRow], list[Example], dict[str, tuple[list[Encoded], list[Encoded]]]]:
    """The rows that fit every checkpoint's context, and their encodings by checkpoint."""
    sides = {}
    for label in work.config.labels:
        encoder = load_encoder(work.input_folder(MODEL + label, "model"))
        observed_side = [encoder.probe(row) for row in observed]
        updating_side = [
            encoder.response(row.id, row.prompt, row.chosen, row.turn) for row in updating
        ]
        sides[label] = (observed_side, updating_side)
    places = [
        [
            at
            for at in range(len(rows))
            if all(encodings[side][at] is not None for encodings in sides.values())
        ]
        for side, rows in enumerate((observed, updating))
    ]
    if not all(places):
        raise ConfigError(
            "kernel",
            [len(indices) for indices in places],
            "every answer is longer than the context of a model; raise observed_pairs and "
            "updating_pairs",
        )
    encoded = {
        label: (
            [answer for at in places[0] if (answer := observed_side[at]) is not None],
            [answer for at in places[1] if (answer := updating_side[at]) is not None],
        )
        for label, (observed_side, updating_side) in sides.items()
    }
    return [observed[at] for at in places[0]], [updating[at] for at in places[1]], encoded


def _sizes(
    work: Work[KernelJob], label: str, observed: list[Encoded], updating: list[Encoded]
) -> KernelSizes:

    config, step = work.config, work.config.steps.get(label)
    policy = load_policy(work.input_folder(MODEL + label, "model"), _adapter(work, label))
    vocabulary = policy.causal.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    longest = max(answer.response_length for answer in observed)
    image_bytes = (config.rank + config.probes) * longest * vocabulary * policy.dtype.itemsize
    return kernel_sizes(
        policy,
        observed,
        updating,
        at=None if step is None else recorded_step(work, MODEL + label, step).before,
        rank=config.rank,
        probes=config.probes,
        seed=config.seed,
        memory_bytes=max(config.memory_bytes, 4 * image_bytes),
    )


def _adapter(work: Work[KernelJob], label: str) -> Path | None:
    """The adapters that a checkpoint's recorded step trained; None without such a step."""
    recorded = work.config.steps.get(label) is not None
    return adapter_folder(work, MODEL + label) if recorded else None


def _findings(work: Work[KernelJob], sizes: Mapping[str, KernelSizes]) -> KernelFindings:

    config = work.config
    pairs = next(iter(sizes.values())).raw.size
    compared = len(sizes) > 1 and pairs > 2
    agreements = kernel_stability(sizes, threshold=config.threshold) if compared else ()
    return KernelFindings(
        labels=config.labels,
        adapters=tuple(label for label in config.labels if _adapter(work, label) is not None),
        threshold=config.threshold,
        rank=config.rank,
        probes=config.probes,
        agreements=tuple(
            AgreementRow(
                first=agreement.first,
                second=agreement.second,
                correlation=agreement.correlation,
                low=agreement.low,
                high=agreement.high,
                ceiling=agreement.ceiling,
                verdict=agreement.verdict,
                growth=float(np.median(agreement.growth)),
            )
            for agreement in agreements
        ),
    )


def _metrics(
    sizes: Mapping[str, KernelSizes], agreements: Sequence[AgreementRow]
) -> dict[str, float]:
    """Geometric mean of ‖CKC‖ by checkpoint, rank correlations of two checkpoints, the lowest."""
    by_label = {
        f"kernel/size/{label}": float(np.exp(np.log(size.centred).mean()))
        for label, size in sizes.items()
    }
    between = {
        f"kernel/rank_correlation/{agreement.first}-{agreement.second}": agreement.correlation
        for agreement in agreements
    }
    lowest = {"kernel/rank_correlation": min(between.values())} if between else {}
    return by_label | between | lowest


def estimate(costs: Costs, config: KernelJob, _: Reads) -> StageCost:
    """Directions of each updating pair, and their images at every observed one."""
    answers = config.updating_pairs * config.rank * (4 + 4 * config.observed_pairs)
    return costs.analysis(answers, AnalysisCopies(host=2), beside=config.memory_bytes)


KERNEL = Stage("kernel", 3, measure_kernel, ("memory_bytes",), estimate)
