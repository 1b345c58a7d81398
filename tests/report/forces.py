"""A force analysis made from formulas, for the page's tests."""

from __future__ import annotations

import numpy as np

from dynolab.report.inputs.study import CheckpointForces, ForcePageInputs, Kernel, StageFacts
from dynolab.results.forces import (
    AgreementRow,
    AnalysisFacts,
    BlockPart,
    KernelFindings,
    KernelSizeRow,
    LastLayerFit,
    PairForce,
    ResponseTermsRow,
)
from dynolab.results.study import TokenMap

SPLITS = {"train": 3, "heldout": 2}


def analysis(word: str = "", rejected: bool = True, labels: tuple[str, ...] = ("base", "dpo")):  # type: ignore[no-untyped-def]
    """Two checkpoints; `word` is added to every text that data or a tokenizer could bring."""
    return ForcePageInputs(
        name="forces" + word,
        checkpoints=tuple(
            _checkpoint(at, label, word, rejected) for at, label in enumerate(labels)
        ),
        kernel=kernel(labels, word),
        reference=labels[0],
        settings=f"name: {word}",
        stages=(StageFacts(stage="analysis" + word, key="0" * 64, seconds=2.0),),
    )


def _checkpoint(number: int, label: str, word: str, rejected: bool) -> CheckpointForces:
    rng = np.random.default_rng(number)
    observed = [
        (f"{split}-{at}{word}", split, kind + word)
        for split, count in SPLITS.items()
        for at in range(count)
        for kind in ("chosen", "rejected")
    ]
    totals = tuple(
        PairForce(
            observed_id=name,
            split=split,
            kind=kind,
            tokens=3,
            updating_id=f"train-{pair}{word}",
            from_chosen=float(rng.normal()),
            from_rejected=float(rng.normal()) * rejected,
            from_head=float(rng.normal()),
        )
        for name, split, kind in observed
        for pair in range(3)
    )
    tokens = ["a" + word, "<b>" + word, "%{x}" + word]
    sides = ("chosen", "rejected") if rejected else ("chosen",)
    terms = tuple(
        ResponseTermsRow(
            role=role,
            id="train-0" + word,
            kind=kind,
            tokens=tokens,
            logp=[-0.5] * 3,
            a_norm=[5.0, 6.0, 7.0],
            energy=[0.1, 0.2, 0.9],
            force_size=[0.1, 0.3, 1.1],
            learning_rate=[0.1] * 3,
            g_norm=[0.01, 0.03, 0.11],
        )
        for role in ("observed", "updating")
        for kind in sides
    )
    other = token_map(word, False).model_copy(update={"observed_id": "train-1" + word})
    maps = (token_map(word, rejected), other)
    return CheckpointForces(label, _facts(rejected), totals, terms, maps)


def token_map(word: str, rejected: bool) -> TokenMap:
    tokens = ["a" + word, "</script>" + word]
    return TokenMap(
        stage="dpo",
        step=None,
        observed_id="train-0" + word,
        observed_kind="rejected" + word,
        updating_id="train-0" + word,
        learning_rate=0.1,
        observed_tokens=tokens,
        chosen_tokens=tokens,
        rejected_tokens=tokens if rejected else [],
        force=[[0.1, -0.2, 0.3, 0.4][: 4 if rejected else 2]] * 2,
    )


def _facts(rejected: bool) -> AnalysisFacts:
    return AnalysisFacts(
        objective="dpo" if rejected else "sft",
        objective_settings={"beta": 0.1},
        learning_rate=0.01,
        step=None,
        dtype="float32",
        observed_answers=10,
        observed_tokens=30,
        updating_pairs=3,
        updating_tokens=18,
        left_out=0,
        blocks=(
            BlockPart(block="head", share=0.9, projection=0.8),
            BlockPart(block="mlp", share=0.5, projection=0.2),
        ),
        last_layer=LastLayerFit(cosine=0.9, norm_ratio=0.9, sign_agreement=0.7),
        sum_error=1e-7,
    )


def kernel(labels: tuple[str, ...], word: str = "") -> Kernel:
    """Sizes at every label; `word` is added to every text that data could bring."""
    sizes = tuple(
        KernelSizeRow(
            label=label,
            observed_id=f"train-{o}{word}",
            split="train",
            kind="chosen" + word,
            updating_id=f"train-{u}{word}",
            raw=20.0 + o,
            raw_error=1.0,
            centred=10.0 + 3 * o + u,
            centred_error=0.5,
        )
        for label in labels
        for o in range(3)
        for u in range(3)
    )
    agreements = tuple(
        AgreementRow(
            first=labels[0],
            second=second,
            correlation=0.95,
            low=0.9,
            high=0.99,
            ceiling=0.99,
            verdict="holds",
            growth=0.5,
        )
        for second in labels[1:]
    )
    findings = KernelFindings(labels=labels, threshold=0.8, rank=8, probes=8, agreements=agreements)
    return Kernel(findings, sizes)
