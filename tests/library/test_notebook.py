"""What a notebook begins with: forces between texts, and results of a home."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynolab import DPOConfig, Example, ProbeRow, Result, force_map, load_data
from dynolab.data.encode import Encoder
from dynolab.data.rows import write_rows
from dynolab.errors import ConfigError
from dynolab.notebook.forces import TextForces
from tests.flows.analysed import Analysed
from tests.library.test_wheel import NOTEBOOKS
from tests.training.small import make_policy, make_rows, make_tokenizer

TOKENIZER = make_tokenizer()


def policy() -> Any:
    return make_policy(TOKENIZER).eval()


def forces(**options: Any) -> TextForces:
    rows = make_rows(3)
    return force_map(
        policy(), TOKENIZER, observed=rows, updating=rows, **{"learning_rate": 1.0, **options}
    )


def test_all_pushes_make_up_the_change_of_a_small_step() -> None:
    """The sum over all pairs is what a gradient step of DPO's mean loss does, in float64."""
    rows, rate = make_rows(3), 1e-5
    model = policy().double()
    encoder = Encoder(TOKENIZER, 48, "error")
    examples = encoder.examples(rows)

    def total(sequence: Any) -> torch.Tensor:
        logits = model(torch.tensor([sequence.ids])).logits[0, sequence.prompt_length - 1 : -1]
        answer = torch.tensor(sequence.ids[sequence.prompt_length :])
        return torch.log_softmax(logits, -1).gather(1, answer[:, None]).sum()

    margin = [total(e.chosen) - total(e.rejected) for e in examples]
    # At the reference itself: -log σ(β·0 + β·(margin − margin₀)).
    loss = sum(-torch.nn.functional.logsigmoid(0.1 * (m - m.detach())) for m in margin) / 3
    found = force_map(model, TOKENIZER, observed=rows, updating=rows, learning_rate=rate)
    before = [total(e.chosen).item() for e in examples]
    loss.backward()  # type: ignore[union-attr]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
    after = [float(total(e.chosen)) for e in examples]
    for answer, (old, new) in enumerate(zip(before, after, strict=True)):
        pushed = sum(push.nats for push in found.pushes(answer))
        assert new - old == pytest.approx(pushed, rel=1e-3)


def test_blocks_go_by_number_id_and_side() -> None:
    found = forces()
    names = [row.id for row in make_rows(3)]
    block = found.block(1, 2, "rejected")
    assert np.array_equal(block, found.block(names[1], names[2], "rejected"))
    assert np.array_equal(block, found.map.block(1, 5))
    sums = {(push.pair, push.side): push.nats for push in found.pushes(1)}
    assert sums[names[2], "rejected"] == pytest.approx(float(block.sum()))
    assert [push.nats for push in found.pushes(1)] == sorted(sums.values())


def test_rows_of_a_data_set_and_answers_of_ones_own() -> None:
    pairs = [row.model_dump(exclude={"id", "wins"}) for row in make_rows(2)]
    answer = {"prompt": pairs[0]["prompt"], "response": pairs[0]["chosen"]}
    probe = ProbeRow(pair_id="mine", split="train", kind="chosen", made_by="me", **answer)
    found = force_map(policy(), TOKENIZER, observed=[answer, probe, pairs[0]], updating=pairs)
    assert found.answers == ("0", "mine", "2") and found.pairs == ("0", "1")
    for same in ("mine", 2):
        assert np.allclose(found.block(same, 1), found.block(0, 1), atol=1e-5)


def test_a_reference_of_ones_own_changes_the_weights_of_pairs() -> None:
    other = make_policy(TOKENIZER, seed=1).eval()
    assert not np.allclose(forces().map.force, forces(reference=other).map.force)
    strong = forces(objective=DPOConfig(beta=0.3)).map.force
    assert np.allclose(strong, 3 * forces().map.force, rtol=1e-4, atol=1e-9)


def test_the_plot_has_both_sides_and_sft_has_one() -> None:
    both = forces().plot(0, 1)
    assert any(trace.type == "heatmap" for trace in both.data)
    rows = [Example(id=r.id, prompt=r.prompt, chosen=r.chosen) for r in make_rows(2)]
    one = force_map(policy(), TOKENIZER, observed=rows, updating=rows, objective="sft")
    assert any(trace.type == "heatmap" for trace in one.plot().data)
    with pytest.raises(ConfigError, match=r"side = 'rejected': this objective trains on: chosen"):
        one.block(0, 0, "rejected")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forces().block(7, 0), "answer = 7: choose a number below 3, or one of "),
        (lambda: forces().block(0, "none"), "pair = 'none': choose"),
        (lambda: forces(objective="dpoo"), "objective = 'dpoo': choose one of sft, "),
    ],
)
def test_what_is_not_there_is_named(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_breakdown_adds_up_to_the_map() -> None:
    found = forces()
    assert np.allclose(found.breakdown().force.numpy(), found.map.force, atol=1e-4)


def test_a_result_is_opened_by_key_and_by_stage(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = analysed.platform.settings.home
    found = Result.open(f"sft/{analysed.sft.key[:6]}", home=home)
    assert found == Result.open("sft", home=home) or found.stage == "sft"
    assert found.folder == analysed.folder(analysed.sft)
    assert found.recorded_steps == (1, 3)
    assert found.record(3).facts.step == 3
    assert found.settings["steps"] == 4 and found.metrics["data/rows_kept"] == 12
    assert found.model().config.vocab_size >= len(found.tokenizer())
    monkeypatch.setenv("DYNOLAB_HOME", str(home))
    data = Result.open("data")
    with pytest.raises(ConfigError, match="step = 2: was not recorded; recorded steps: 1, 3"):
        found.record(2)
    with pytest.raises(ConfigError, match="holds no model"):
        data.model()
    with pytest.raises(ConfigError, match=r"which has results of: .*base, .*data, "):
        Result.open("preference/0123")
    with pytest.raises(ConfigError, match="which has results of: none"):
        Result.open("sft", home=tmp_path)


def test_pairs_of_a_file_are_loaded_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        "".join(f'{{"prompt": "p{n}", "chosen": "a{n}", "rejected": "b{n}"}}\n' for n in range(20))
    )
    data = load_data(file)
    assert (len(data.pairs), len(data.heldout)) == (18, 2)
    assert load_data(str(file)) == data


def test_a_notebook_without_plotly_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for content in (policy(), TOKENIZER):
        content.save_pretrained(tmp_path / "model")
    write_rows(tmp_path / "pairs.jsonl", make_rows(20))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "plotly", None)
    message = "plot = 'plotly': is not installed; in Dynolab's folder: pip install '.[report]'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        exec(NOTEBOOKS["one_pair_on_another"], {})
