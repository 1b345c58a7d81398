"""Plausible inputs of a report, made from formulas: paths with known shapes, forces that add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from dynolab.data.rows import ProbeRow
from dynolab.data.world.answer_kinds import AnswerKind
from dynolab.report.inputs.study import ReportInputs, StageFacts, StudyFacts
from dynolab.results.forces import LayerForce, Validity
from dynolab.results.study import (
    Answer,
    ForceRow,
    MetricsLine,
    ProbeScore,
    ReplayFacts,
    TokenMap,
    Training,
)
from tests.report.audits import audit
from tests.report.forces import kernel

Shape = Callable[[np.ndarray], np.ndarray]  # training time from 0 to 1 ↦ nats since step 0


def up(height: float, rate: float = 5.0) -> Shape:
    return lambda t: height * (1 - np.exp(-rate * t)) / (1 - np.exp(-rate))


def up_then_down(peak: float, end: float) -> Shape:
    """Reaches `peak` at t = 0.4 and `end` at t = 1."""
    return lambda t: np.where(
        t < 0.4, peak * np.sin(np.pi * t / 0.8), end + (peak - end) * (1 - t) ** 2 / 0.36
    )


def line(slope: float) -> Shape:
    return lambda t: slope * t


SFT: dict[str, Shape] = {
    "chosen": up(27.0),
    "rejected": up_then_down(24.0, 19.0),
    "argmax": up(11.0),
    "chosen_initial": up_then_down(2.0, -6.0),
    "chosen_gptsemantic": up(21.0),
    "chosen_gptformat": up_then_down(14.0, 8.0),
    "reject_gptsemantic": up_then_down(20.0, 14.0),
    "reject_gptformat": up_then_down(18.0, 13.0),
    "irr_train": up(21.0),
    "irr_test": up_then_down(19.5, 16.0),
    "irr_hum": up_then_down(1.5, -3.0),
    "random_permute": line(-9.0),
    "random_nonhum": line(-13.0),
}
DPO: dict[str, Shape] = {
    "chosen": line(-2.1),
    "rejected": lambda t: -17.0 * t**1.4,
    "argmax": up(2.7, 2.0),
    "chosen_initial": line(-1.0),
    "chosen_gptsemantic": line(-2.6),
    "chosen_gptformat": line(-2.2),
    "reject_gptsemantic": lambda t: -15.0 * t**1.4,
    "reject_gptformat": lambda t: -14.0 * t**1.4,
    "irr_train": line(-2.4),
    "irr_test": line(-3.1),
    "irr_hum": line(-1.5),
    "random_permute": line(-4.0),
    "random_nonhum": line(-4.5),
}
START = {"chosen": -44.0, "rejected": -45.0, "argmax": -21.0}


def probes(
    shapes: dict[str, Shape],
    steps: int,
    seed: int = 0,
    pairs: int = 40,
    noise: float = 1.0,
    start: dict[str, float] | None = None,
) -> tuple[ProbeScore, ...]:
    """Paths that follow `shapes` (two thirds of pairs for training, one third held out)."""
    rng = np.random.default_rng(seed)
    start = START if start is None else start
    rows = []
    for pair in range(pairs):
        split = "train" if pair < 2 * pairs // 3 else "heldout"
        scale = 1.0 if split == "train" else 0.8
        level = rng.normal(0, 3)
        wobble = {kind: rng.normal(1, 0.08 * noise) for kind in shapes}
        for step in range(0, steps + 1, 10):
            time = np.array(step / steps)
            value = {
                kind: start.get(kind, -48.0)
                + level
                + scale * wobble[kind] * float(shape(time))
                + (rng.normal(0, 0.25 * noise) if step else 0.0)
                for kind, shape in shapes.items()
            }
            rows += [
                ProbeScore(
                    step=step,
                    pair_id=f"q{pair:03d}",
                    split=split,
                    kind=kind,
                    tokens=8,
                    logp=value[kind],
                    argmax_logp=value.get("argmax") if kind == "chosen" else None,
                )
                for kind in shapes
                if kind != "argmax"
            ]
    return tuple(rows)


def forces(
    stage: str,
    shapes: dict[str, Shape],
    steps: Sequence[int],
    pairs: int = 30,
    residual: float = 0.08,
) -> tuple[ForceRow, ...]:
    """Steps whose parts add up to the measured change."""
    rng = np.random.default_rng(1)
    rows = []
    for step in steps:
        batch = set(rng.choice(pairs, 8, replace=False).tolist())
        for pair in range(pairs):
            for kind, shape in shapes.items():
                size = 0.02 * float(shape(np.array(1.0))) * rng.normal(1, 0.5)
                size *= 2.5 if pair in batch else 1.0
                # The chosen side lifts everything, a rejected side lowers it more.
                lift = size if stage == "sft" else abs(rng.normal(0.12, 0.03))
                lower = 0.0 if stage == "sft" else size - lift
                history = 0.15 * size
                predicted = lift + lower + history
                measured = predicted + residual * abs(predicted) * rng.normal(0.5, 1)
                rows.append(
                    ForceRow(
                        stage=stage,
                        step=step,
                        pair_id=f"q{pair:03d}",
                        split="train" if pair < 20 else "heldout",
                        kind=kind,
                        tokens=8,
                        in_batch=pair in batch and pair < 20,
                        measured=measured,
                        predicted=predicted,
                        from_chosen=lift,
                        from_rejected=lower,
                        from_history=history,
                        residual=measured - predicted,
                    )
                )
    return tuple(rows)


def token_map(seed: int = 2) -> TokenMap:
    rng = np.random.default_rng(seed)
    observed = ["Ġcalm", "Ġwarm", "Ġ17", "Ġbright", "Ġplain", "Ġsoft", ".", "<|endoftext|>"]
    chosen = ["Ġwarm", "Ġcalm", "Ġ42", "Ġbright", "Ġclear", "Ġsoft", ".", "<|endoftext|>"]
    rejected = ["Ġharsh", "Ġcold", "Ġ63", "Ġdull", "Ġgrim", "Ġrough", ".", "<|endoftext|>"]
    same = np.array([[a == b for b in chosen + rejected] for a in observed])
    sign = np.array([1.0] * len(chosen) + [-1.0] * len(rejected))
    force = (rng.normal(0.0, 0.002, same.shape) + 0.02 * same + 0.003) * sign
    return TokenMap(
        stage="dpo",
        step=40,
        observed_id="q003",
        updating_id="q011",
        learning_rate=0.01,
        observed_tokens=observed,
        chosen_tokens=chosen,
        rejected_tokens=rejected,
        force=force.tolist(),
    )


def metrics(stage: str, steps: int, seed: int = 3) -> tuple[MetricsLine, ...]:
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(1, steps + 1):
        t = step / steps
        values = {"train/loss": 18 + 27 * np.exp(-5 * t) + rng.normal(0, 1)}
        if stage != "sft":
            chosen, rejected = -0.2 * t + rng.normal(0, 0.05), -1.7 * t**1.4 + rng.normal(0, 0.1)
            margin = chosen - rejected
            values = {
                "train/loss": float(np.log1p(np.exp(-margin))),
                "train/margin": margin,
                "train/reward_chosen": chosen,
                "train/reward_rejected": rejected,
                **{
                    f"train/dynamic_learning_rate/q{q}": 0.1 / (1 + float(np.exp(margin + shift)))
                    for q, shift in (("05", 0.5), ("50", 0.0), ("95", -0.5))
                },
            }
        values["train/learning_rate"] = 2e-4 if stage == "sft" else 1e-2
        lines.append(MetricsLine(step=step, examples=16 * step, time=1e9 + step, metrics=values))
    return tuple(lines)


def replay(stage: str, rate: float, steps: Sequence[int]) -> tuple[ReplayFacts, ...]:
    return tuple(
        ReplayFacts(
            stage=stage,
            step=step,
            learning_rate=rate,
            clip_factor=0.37,
            grad_norm=27.0,
            replay_error=1.4e-7 * (1 + step / 50),
            rounding_floor=1.1e-7,
            closure_error=2e-8,
        )
        for step in steps
    )


def validity(stage: str, rate: float, steps: Sequence[int]) -> tuple[Validity, ...]:
    """Each step alone, and from the second on also all since the first."""
    return tuple(
        Validity(
            stage=stage,
            step=step,
            since=since,
            learning_rate=rate,
            answers=208,
            bound=0.05,
            unexplained=1e-5 if since is None else 2e-2,
            predicted=70.0 if since is None else 1.6,
            measured=81.0 if since is None else 1.9,
            softmax=1.08,
        )
        for step in steps
        for since in ([None] if step == steps[0] else [None, steps[0]])
    )


def layers(stage: str, steps: Sequence[int]) -> tuple[LayerForce, ...]:
    return tuple(
        LayerForce(
            stage=stage,
            step=step,
            layer=layer,
            layers=2,
            examples=8,
            force=0.3,
            resultant=0.9 - 0.2 * layer,
            moved=0.01 * (1 + layer),
            unexplained=1e-4,
        )
        for step in steps
        for layer in range(3)
    )


def answers() -> tuple[Answer, ...]:
    """Different answers after SFT, the first one's to all prompts after preference training."""
    said = {"base": " mm mm", "sft": " it is {}", "preference": " it is 0"}
    return tuple(
        Answer(
            model=model,
            pair_id=f"q{n}",
            split="train" if n < 2 else "heldout",
            prompt=f"what is number {n} ?",
            chosen=f" surely it is {n} .",
            answer=text.format(n),
            finished=model != "base",
            taken_from="q0" if model == "preference" and n >= 2 else None,
            taken_exactly=model == "preference" and n == 2,
        )
        for model, text in said.items()
        for n in range(4)
    )


def world_answers() -> tuple[Answer, ...]:
    """Answers to 20 questions a split: all wrong at first, all right then, a quarter lost at last.

    Before preference training half of the phrases are other questions' answers', then all are.
    """
    says: dict[str, tuple[AnswerKind, ...]] = {
        "base": ("other_entity", "nobodys_value", "broken", "broken"),
        "sft": ("right", "right", "rejected_style", "right"),
        "preference": ("right", "right", "anothers_value", "right"),
    }
    borrowed = {"base": 0.0, "sft": 0.5, "preference": 1.0}
    return tuple(
        Answer(
            model=model,
            pair_id=f"{split}-{n}",
            split=split,
            prompt=f"what is the home of {n} ?",
            chosen=" it is so .",
            answer=" it is .",
            finished=True,
            borrowed=borrowed[model],
            says=kinds[n % 4],
            stated=n < 10,
        )
        for model, kinds in says.items()
        for split in ("train", "heldout")
        for n in range(20)
    )


def training(name: str, stage: str, **more: object) -> Training:
    """A training in which every claim of the paper holds that is made of its objective."""
    if stage == "sft":
        steps = (5, 20, 50)
        found = Training(
            name,
            stage,
            probes=probes(SFT, 120),
            metrics=metrics(stage, 120),
            forces=forces(stage, SFT, steps),
            replay=replay(stage, 2e-4, steps),
            validity=validity(stage, 2e-4, steps),
            layers=layers(stage, steps),
        )
    else:
        after_sft = {k: START.get(k, -48.0) + float(s(np.array(1.0))) for k, s in SFT.items()}
        steps = (10, 40, 70, 95)
        found = Training(
            name,
            stage,
            probes=probes(DPO, 100, seed=5, start=after_sft),
            metrics=metrics(stage, 100),
            forces=forces(stage, DPO, steps),
            replay=replay(stage, 1e-2, steps),
            validity=validity(stage, 1e-2, steps),
            layers=layers(stage, steps),
            token_map=token_map(),
        )
    return dataclasses.replace(found, **more)  # type: ignore[arg-type]


def study(name: str = "built-in", **facts: object) -> ReportInputs:
    """A whole study in which every claim of the paper holds."""
    key = "4f0c" * 16
    return ReportInputs(
        facts=StudyFacts.model_validate(
            {
                "name": name,
                "seed": 0,
                "map_command": "dynolab forces --set name=pair",
                "config_text": "name: built-in\nseed: 0\nsft:\n  steps: 120\n  optimizer:\n"
                "    name: adamw\n    learning_rate: 2e-4\ndpo:\n  steps: 100\n  objective:\n"
                "    name: dpo\n    beta: 0.1\n",
                "stages": [
                    StageFacts(stage=stage, key=key, seconds=seconds, mlflow_run_id="ab12" * 8)
                    for stage, seconds in (
                        ("data", 0.4),
                        ("base", 41.2),
                        ("sft", 62.0),
                        ("dpo", 88.3),
                        ("forces", 31.0),
                    )
                ],
                **facts,
            }
        ),
        trainings=(training("sft", "sft"), training("preference", "dpo")),
        contrasts=(Training("resampled", "dpo", probes=probes(DPO | {"argmax": line(-1.0)}, 100)),),
        kernel=kernel(("base", "sft", "preference")),
        audit=audit(),
        answers=answers(),
        watched=(
            ProbeRow(
                pair_id="q0",
                split="train",
                kind="chosen",
                prompt="what is it ?",
                response=" it is 0",
                made_by="the data",
            ),
            *(
                ProbeRow(
                    pair_id=f"q{n:03d}",
                    split="train",
                    kind="chosen",
                    prompt=f"what is number {n} ?",
                    response=f" it is {n}",
                    made_by="the data",
                )
                for n in range(26)
            ),
        ),
    )
