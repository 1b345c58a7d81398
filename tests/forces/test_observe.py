from __future__ import annotations

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, step_forces
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import DPOConfig, SFTConfig
from dynolab.training.config import OptimizerConfig, TrainConfig
from tests.forces.small_models import neox, pairs, train_steps, with_reference

SGD = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)


class Numbers:
    """A tokenizer of numbers between blanks."""

    eos_token_id, bos_token_id, pad_token_id = 2, None, 0

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True
    ) -> dict[str, list[int] | list[list[int]]]:
        if isinstance(text, list):
            return {"input_ids": [[int(word) for word in one.split()] for one in text]}
        return {"input_ids": [int(word) for word in text.split()]}


def probe(pair_id: str, kind: str, prompt: str, response: str) -> ProbeRow:
    return ProbeRow(
        pair_id=pair_id, split="train", kind=kind, prompt=prompt, response=response, made_by="test"
    )


PROBES = [
    probe("pair-0", "chosen", "5 6 7", " 8 9"),
    probe("pair-0", "rejected", "5 6 7", " 8 10 11 12"),
    probe("pair-9", "chosen", "30 31", " 32 33 34"),
    probe("pair-9", "irr_test", "30 31", " 20"),
]


def run(objective, batch_tokens=4096, stage="dpo", optimizer=SGD):
    model = neox()
    examples = with_reference(model, pairs(3))
    config = TrainConfig(
        objective=objective, optimizer=optimizer, engine={"kind": "plain", "ranks": 1}
    )
    record = train_steps(model, config, examples, steps=2).records[-1]
    policy = PolicyFunction(model, torch.float64)
    encoder = Encoder(Numbers(), 32, "drop")
    made = step_forces(record, policy, PROBES, encoder, stage=stage, batch_tokens=batch_tokens)
    assert encoder.counts.kept == 0
    return record, made


def test_rows_follow_the_probes_and_add_up():
    record, made = run(DPOConfig())
    assert [(row.pair_id, row.kind) for row in made.rows] == [
        ("pair-0", "chosen"),
        ("pair-0", "argmax"),
        ("pair-0", "rejected"),
        ("pair-9", "chosen"),
        ("pair-9", "argmax"),
        ("pair-9", "irr_test"),
    ]
    assert [row.in_batch for row in made.rows] == [True] * 3 + [False] * 3
    assert [row.tokens for row in made.rows] == [3, 3, 5, 4, 4, 2]
    for row in made.rows:
        parts = row.from_chosen + row.from_rejected + row.from_history
        assert row.predicted == pytest.approx(parts, rel=1e-6, abs=1e-12)
        assert row.residual == pytest.approx(row.measured - row.predicted, abs=1e-15)
        assert abs(row.residual) < 1e-3 * abs(row.measured) + 1e-7
        assert row.from_history != 0
    assert made.replay.replay_error < 1e-9
    assert made.replay.closure_error < 1e-9
    assert made.replay.step == record.facts.step == 1
    assert made.replay.clip_factor == record.facts.clip_factor


def test_measured_changes_are_those_of_the_weights_by_themselves():
    record, made = run(DPOConfig())
    sequences = [Encoded((5, 6, 7, 8, 9, 2), 3), Encoded((5, 6, 7, 8, 10, 11, 12, 2), 3)]
    chosen, argmax, rejected = made.rows[:3]
    values, best = {}, None
    for name, state in (("before", record.before), ("after", record.after)):
        model = neox(seed=9)
        model.load_state_dict(state)
        for row, sequence in zip((chosen, rejected), sequences, strict=True):
            batch = collate([sequence], 0)
            with torch.no_grad():
                logits = ResponseLogits(model)(batch)
            values[name, row.kind] = float(token_logps(logits, batch).sum())
            if row is chosen:
                best = logits.argmax(-1) if best is None else best
                picked = logits.log_softmax(-1).gather(-1, best[:, None])
                values[name, "argmax"] = float(picked.sum())
    for row in (chosen, argmax, rejected):
        change = values["after", row.kind] - values["before", row.kind]
        assert row.measured == pytest.approx(change, abs=1e-12)


def test_batching_changes_nothing():
    _, together = run(DPOConfig())
    _, alone = run(DPOConfig(), batch_tokens=1)
    for row, other in zip(together.rows, alone.rows, strict=True):
        assert row.measured == pytest.approx(other.measured, abs=1e-12)
        assert row.predicted == pytest.approx(other.predicted, abs=1e-12)
        assert row.kind == other.kind


def test_sft_has_no_rejected_part():
    plain = OptimizerConfig(name="sgd", learning_rate=1e-2)
    _, made = run(SFTConfig(), stage="sft", optimizer=plain)
    for row in made.rows:
        assert row.stage == "sft"
        assert row.from_rejected == 0
        assert row.from_history == 0
        assert row.predicted == pytest.approx(row.from_chosen, rel=1e-6, abs=1e-12)


def test_nothing_left_to_watch_is_refused():
    model = neox()
    config = TrainConfig(objective=SFTConfig(), optimizer=SGD, engine={"kind": "plain", "ranks": 1})
    record = train_steps(model, config, pairs(2), steps=1).records[0]
    long = [probe("pair-0", "chosen", "5", " 6" * 40)]
    with pytest.raises(ConfigError, match="probes"):
        step_forces(
            record, PolicyFunction(model), long, Encoder(Numbers(), 32, "drop"), stage="sft"
        )
