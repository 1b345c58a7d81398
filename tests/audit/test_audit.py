"""The audit against the force map, autograd and real steps, and how well it foresees falls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynolab.audit.audit import audit_pairs
from dynolab.audit.foresight import FORCES, RISKY, TRIVIAL, foresight, risk, worst_first
from dynolab.audit.ranking_file import check_scored, ranking_name, read_ranking
from dynolab.audit.word_overlap import word_overlap
from dynolab.data.batches import CHOSEN, REJECTED, collate, collate_examples, count_totals
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.probes.overlap import edit_distance
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, force_map
from dynolab.forces.map.breakdown import pair_totals
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import build_objective
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.pair_losses import SimPOConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.results.audit import ChosenChange, Foresight, PairAudit
from dynolab.training.step_record import RecordedExample
from tests.forces.families import build
from tests.forces.lora import adapted
from tests.forces.small_models import every_objective, pairs

EXACT = 1e-9
LOSSES: list[Any] = [
    # DPOP has no slope at the reference, from which an audit starts.
    one
    for one in every_objective()
    if one.name in PAIR_OBJECTIVES and getattr(one, "loss_type", None) != ("dpop",)  # type: ignore[attr-defined]
]


def encoded_pairs(count: int) -> list[EncodedExample]:
    return [pair.encoded() for pair in pairs(count)]


def audited(
    config: Any = None, family: str = "llama_tied", count: int = 3, held: int = 1
) -> tuple[PolicyFunction, list[EncodedExample], list[PairAudit]]:
    policy = PolicyFunction(build(family), torch.float64)
    everyone = encoded_pairs(count + held)
    objective: Any = build_objective(config or DPOConfig())
    rows = audit_pairs(policy, everyone[:count], objective, heldout=everyone[count:])
    return policy, everyone, rows


def referenced(policy: PolicyFunction, pair: EncodedExample) -> RecordedExample:
    """The pair with the policy itself as its reference."""
    assert pair.rejected is not None
    scores = []
    for one in (pair.chosen, pair.rejected):
        batch = policy.batch([one])
        scores.append(policy.logps({}, batch).tolist())
    return RecordedExample(
        id=pair.id,
        chosen=pair.chosen,
        rejected=pair.rejected,
        chosen_reference=scores[0],
        rejected_reference=scores[1],
        wins=pair.wins,
    )


@pytest.mark.parametrize("config", LOSSES, ids=str)
def test_forces_are_sums_of_the_force_map(config: Any) -> None:
    policy, everyone, rows = audited(config)
    updating = [referenced(policy, one) for one in everyone[:3]]
    chosen = [one.chosen for one in everyone]
    sums = pair_totals(force_map(policy, chosen, updating, build_objective(config)))
    whole = sums.from_chosen + sums.from_rejected
    for at, row in enumerate(rows):
        assert row.from_all == pytest.approx(whole[at].sum(), rel=EXACT, abs=EXACT)
        if row.split == "train":
            # A map's denominators count its three pairs; the audit's step has one.
            assert row.pull_up == pytest.approx(3 * sums.from_chosen[at, at], rel=EXACT)
            assert row.push_down == pytest.approx(3 * sums.from_rejected[at, at], rel=EXACT)
            others = whole[at].sum() - whole[at, at]
            assert row.from_all - row.force / 3 == pytest.approx(others, rel=EXACT, abs=EXACT)
            assert row.on_all == pytest.approx(whole[:3, at].sum(), rel=EXACT, abs=EXACT)


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2"])
def test_a_real_step_on_the_pair_moves_its_chosen_answer_so(family: str) -> None:
    """Autograd of the loss that trains, and forwards of a moved model.

    The families' own forwards keep float64 but for RMSNorm's, which the others have.
    """
    config = SimPOConfig()
    policy, everyone, rows = audited(config, family)
    objective, model = build_objective(config), policy.model
    before = [weight.detach().clone() for weight in model.parameters()]
    for pair, row in zip(everyone, rows, strict=True):
        batch = collate_examples([pair], 0, (CHOSEN, REJECTED), count_totals([pair], (0, 1)))
        loss = objective.loss(token_logps(ResponseLogits(model)(batch), batch), batch)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                for weight, start, g in zip(model.parameters(), before, gradient, strict=True):
                    weight.copy_(start - step * g)
                own = collate([pair.chosen], 0)
                ends.append(float(token_logps(ResponseLogits(model)(own), own).sum()))
        with torch.no_grad():
            for weight, start in zip(model.parameters(), before, strict=True):
                weight.copy_(start)
        assert row.force == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)
        assert row.force == row.pull_up + row.push_down


def test_the_force_of_the_others_is_that_of_all_without_the_pair_itself() -> None:
    policy, everyone, rows = audited()
    del policy, everyone
    of_map = {row.pair_id: row.from_all - row.force / 3 for row in rows if row.split == "train"}
    changes = [
        ChosenChange(pair_id=row.pair_id, split=row.split, change=of_map.get(row.pair_id, 0.0))
        for row in rows
    ]
    alike = {(row.split, row.pair_id): 0.5 for row in rows}
    scores = {
        row.ranking: row for row in foresight(rows, changes, alike, 3) if row.split == "train"
    }
    assert scores["from_others"].spearman == pytest.approx(1)


def test_word_overlap_is_the_mean_over_the_other_pairs() -> None:
    everyone = encoded_pairs(5)

    def words(answer: Encoded | None) -> set[int]:
        assert answer is not None
        return set(answer.ids[answer.prompt_length :])

    def jaccard(left: set[int], right: set[int]) -> float:
        return len(left & right) / len(left | right)

    for number, overlap in enumerate(word_overlap(everyone, 3)):
        chosen = words(everyone[number].chosen)
        others = [pair for place, pair in enumerate(everyone[:3]) if place != number]
        expected = [
            jaccard(chosen, words(other.rejected)) - jaccard(chosen, words(other.chosen))
            for other in others
        ]
        assert overlap == pytest.approx(np.mean(expected))


def test_the_band_s_edges_are_those_of_autograd() -> None:
    policy, (pair, *_), _ = audited()
    weights = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    sides = []
    for answer in (pair.chosen, pair.rejected):
        assert answer is not None
        total = policy.logps(weights, policy.batch([answer])).sum()
        gradients = torch.autograd.grad(total, list(weights.values()), materialize_grads=True)
        sides.append(torch.cat([gradient.flatten() for gradient in gradients]))
    plus, minus = sides
    square, product, other = plus @ plus, plus @ minus, minus @ minus
    assert product > 0
    for edge, bands in (
        (square / product, ("inside", "below")),
        (product / other, ("above", "inside")),
    ):
        for factor, band in zip((1 - 1e-9, 1 + 1e-9), bands, strict=True):
            config = DPOConfig(negative_dose=float(factor * edge))
            (row,) = audit_pairs(policy, [pair], build_objective(config))  # type: ignore[arg-type]
            assert row.band == band
            # At the reference DPO weighs both sides by β/2.
            expected = config.beta / 2 * (product - factor * edge * other)
            assert row.rejected_force == pytest.approx(float(expected), rel=EXACT, abs=1e-12)


def test_a_ranking_is_right_of_as_many_answers_as_lie_below_the_band() -> None:
    moved = np.array([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])
    audited_pairs = [
        row.model_copy(update={"force": force, "ches": float(at)})
        for at, (row, force) in enumerate(
            zip(rows(moved), (-1.0, 0.5, -0.2, 0.3, 0.1, 0.9), strict=True)
        )
    ]
    found = {row.ranking: row for row in judged(audited_pairs, changes(moved))}
    assert {row.below for row in found.values()} == {2}
    # Two of the three that fell; CHES puts two first that rose.
    assert found["force"].right == pytest.approx(5 / 6)
    assert found["ches"].right == pytest.approx(1 / 6)
    assert found["force"].right_low < 5 / 6 <= found["force"].right_high


def test_ches_is_that_of_the_head_s_inputs() -> None:
    policy, everyone, rows = audited()
    for pair, row in zip(everyone, rows, strict=True):
        sums = []
        for one in (pair.chosen, pair.rejected):
            assert one is not None
            with torch.no_grad():
                states = policy.causal.base_model(torch.tensor([one.ids])).last_hidden_state[0]  # type: ignore[operator]
            sums.append(states[one.prompt_length - 1 : -1].sum(0))
        n, m = row.chosen_tokens, row.rejected_tokens
        across, own = float(sums[0] @ sums[1]), float(sums[0] @ sums[0])
        assert row.ches == pytest.approx(across - own, rel=1e-5)
        assert row.ches_per_token == pytest.approx(across / (n * m) - own / n**2, rel=1e-5)


def test_batches_and_held_out_pairs_change_nothing() -> None:
    policy, everyone, rows = audited()
    objective: Any = build_objective(DPOConfig())
    again = audit_pairs(policy, everyone[:3], objective, batch_tokens=1)
    assert [row.split for row in rows] == ["train"] * 3 + ["heldout"]
    names = {"force", "from_all", "on_all", "ches", "likelihood_gap"}
    for row, other in zip(rows, again, strict=False):
        assert row.model_dump(include=names) == pytest.approx(
            other.model_dump(include=names), rel=EXACT
        )


def test_equal_answers_do_not_move_under_dpo() -> None:
    policy = PolicyFunction(build("gpt_neox"), torch.float64)
    (pair,) = encoded_pairs(1)
    same = EncodedExample("same", pair.chosen, pair.chosen)
    (row,) = audit_pairs(policy, [same], build_objective(DPOConfig()))  # type: ignore[arg-type]
    assert row.pull_up > 0
    assert row.force == pytest.approx(0, abs=1e-12)
    assert row.ches == row.likelihood_gap == row.edit_distance == 0


def test_under_lora_the_adapters_alone_move() -> None:
    model = adapted("gpt_neox")
    policy = PolicyFunction(model, torch.float64)
    pair = encoded_pairs(1)
    (row,) = audit_pairs(policy, pair, build_objective(DPOConfig()))  # type: ignore[arg-type]
    recorded = [referenced(policy, one) for one in pair]
    found = force_map(policy, [pair[0].chosen], recorded, build_objective(DPOConfig()))
    assert row.force == pytest.approx(found.force.sum(), rel=1e-6)


def slow_distance(one: Sequence[int], other: Sequence[int]) -> int:
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return slow_distance(one[1:], other[1:])
    return 1 + min(
        slow_distance(one[1:], other),
        slow_distance(one, other[1:]),
        slow_distance(one[1:], other[1:]),
    )


def test_edit_distance_is_the_fewest_edits_over_the_longer_length() -> None:
    rng = np.random.default_rng(0)
    for n, m in product(range(6), repeat=2):
        one, other = rng.integers(3, size=n).tolist(), rng.integers(3, size=m).tolist()
        expected = slow_distance(one, other) / max(n, m, 1)
        assert edit_distance(one, other) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rejected", "message"),
    [(None, "an audit needs a rejected answer"), (Encoded((3, 4), 2), "has no response tokens")],
)
def test_pairs_that_cannot_be_audited_are_refused(rejected: Any, message: str) -> None:
    policy = PolicyFunction(build("gpt_neox"), torch.float64)
    pair = EncodedExample("a", Encoded((3, 4, 5), 2), rejected)
    with pytest.raises(ConfigError, match=message):
        audit_pairs(policy, [pair], build_objective(DPOConfig()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one pair"):
        audit_pairs(policy, [], build_objective(DPOConfig()))  # type: ignore[arg-type]


MADE = tuple(name for name in RISKY if name in PairAudit.model_fields and name != "chosen_tokens")
"""Rankings whose values a test may choose; the others follow from them."""


def rows(values: Sequence[float], split: str = "train") -> list[PairAudit]:
    """Pairs whose every quantity is the given value, in each ranking's own direction."""
    return [
        PairAudit(
            pair_id=f"p{number}",
            split=split,
            chosen_tokens=4,
            rejected_tokens=4,
            pull_up=0.0,
            **{name: -RISKY[name] * value for name in MADE},
        )
        for number, value in enumerate(values)
    ]


def changes(values: Sequence[float], split: str = "train") -> list[ChosenChange]:
    return [
        ChosenChange(pair_id=f"p{number}", split=split, change=value)
        for number, value in enumerate(values)
    ]


def judged(rows: list[PairAudit], changes: list[ChosenChange]) -> list[Foresight]:
    """Where all texts are alike, and no pair is among the audited but those that are held out."""
    alike = {(row.split, row.pair_id): 0.5 for row in rows}
    return foresight(rows, changes, alike, training_pairs=10**9)


def test_a_ranking_in_the_order_of_the_falls_foresees_all() -> None:
    moved = np.linspace(-2, 1, 30)
    scores = judged(rows(moved**3), changes(moved))
    assert [row.ranking for row in scores] == list(RISKY)
    for row in scores:
        assert (row.pairs, row.fallen) == (30, 20)
        if row.ranking not in (*MADE, "chosen_logp_per_token"):
            continue
        assert (row.spearman, row.spearman_high) == (pytest.approx(1), pytest.approx(1))
        assert row.auc == row.auc_low == 1


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng, covered = np.random.default_rng(2), 0
    for _ in range(5):
        moved = rng.normal(size=80)
        noisy = {name: moved + rng.normal(size=80) for name in MADE}
        audited = [
            row.model_copy(update={name: -RISKY[name] * noisy[name][at] for name in MADE})
            for at, row in enumerate(rows(moved))
        ]
        # Spearman's ρ of normal variables correlated by 1/√2.
        truth = 6 / math.pi * math.asin(0.5**0.5 / 2)
        scores = [row for row in judged(audited, changes(moved)) if row.ranking in MADE]
        covered += sum(row.spearman_low < truth < row.spearman_high for row in scores)
    assert covered >= 0.85 * 5 * len(MADE)  # 0.95 of them are expected


def test_a_force_that_repeats_a_trivial_ranking_adds_nothing_to_it() -> None:
    rng = np.random.default_rng(3)
    likely, more = rng.normal(size=(2, 400))
    moved = -likely - more + 0.5 * rng.normal(size=400)
    audited = [
        row.model_copy(
            update={name: float(rng.normal()) for name in MADE}
            | {"chosen_logp": likely[at], "from_all": -likely[at] + 0.5 * rng.normal()}
            | {"force": -more[at], "chosen_tokens": int(rng.integers(1, 9))}
        )
        for at, row in enumerate(rows(moved))
    ]
    scores = {row.ranking: row for row in judged(audited, changes(moved))}
    assert {scores[name].given for name in FORCES} == {"chosen_logp"}
    assert {scores[name].given for name in TRIVIAL} == {"force"}
    assert abs(scores["from_all"].partial) < 0.15 < scores["from_all"].spearman
    assert scores["force"].partial_low > 0.5


def test_few_answers_of_either_kind_have_no_auc() -> None:
    moved = np.array([-1.0] * 9 + [1.0] * 30) + np.linspace(0, 0.1, 39)
    assert all(math.isnan(row.auc) for row in judged(rows(moved), changes(moved)))
    moved[9] = -1.0
    assert judged(rows(moved), changes(moved))[0].auc == 1


def test_splits_are_judged_apart_and_pairs_without_a_change_left_out() -> None:
    train, held = [-1.0, 0.5, -0.3, 0.2], [0.4, -0.6, -0.1]
    found = judged(
        rows(train) + rows(held, "heldout"), changes(train[:3]) + changes(held, "heldout")
    )
    sizes = {(one.split, one.pairs, one.fallen) for one in found}
    assert sizes == {("train", 3, 2), ("heldout", 3, 2)}


def test_a_ranking_from_elsewhere_is_judged_beside_the_others() -> None:
    moved = np.linspace(-2, 1, 30)
    both = rows(moved) + rows(moved, "heldout")
    # Its scores lack a held-out pair.
    scores = {row.pair_id: -change for row, change in zip(both, moved, strict=False)}
    held = [row.model_copy(update={"pair_id": f"h{row.pair_id}"}) for row in both[30:]]
    alike = {(row.split, row.pair_id): 0.5 for row in [*both[:30], *held]}
    fell = [
        *changes(moved),
        *(ChosenChange(pair_id=row.pair_id, split="heldout", change=-1) for row in held),
    ]
    found = foresight([*both[:30], *held], fell, alike, 10**9, {"theirs": scores})
    (theirs,) = [row for row in found if row.ranking == "theirs"]
    assert (theirs.split, theirs.spearman, theirs.auc) == ("train", pytest.approx(1), 1)
    assert theirs.given in FORCES


PAIR_IDS = {"train": ["a", "b"], "heldout": ["c"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "a", "score": 1}\n{"id": "b"}', r"ranking row 2 = \['id'\]: has no id and score"),
        ('{"id": "a", "score": "high"}', r"ranking row 1\.score = 'high': is no finite number"),
        ('{"id": "a", "score": NaN}', r"ranking row 1\.score = nan"),
        ('{"id": "a", "score": 1}\n{"id": "a", "score": 2}', r"ranking row 2\.id = 'a': stands"),
        ("", "has no rows"),
        ('{"id": "x", "score": 1}', "ranking = 'x': are ids of no pair; the data's are like a, b"),
        ('{"id": "b", "score": 1}', "ranking = 'a': have no score, 1 others of split train"),
        ('{"id": "later", "score": 1}', "none of these pairs is audited"),
    ],
)
def test_scores_that_do_not_fit_are_refused(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        check_scored(read_ranking(file), PAIR_IDS, ["a", "b", "c", "later"])


def test_a_ranking_is_named_by_its_file() -> None:
    assert ranking_name(Path("my scores.v2.jsonl.gz")) == "my-scores"
    with pytest.raises(ConfigError, match="rename the file"):
        ranking_name(Path("force.parquet"))


def test_where_nothing_differs_there_is_no_number() -> None:
    all_fell = judged(rows([1.0, 1.0, 1.0]), changes([-1.0, -2.0, -3.0]))[0]
    assert math.isnan(all_fell.auc)
    assert math.isnan(all_fell.spearman)
    assert type(all_fell).model_validate_json(all_fell.model_dump_json()).pairs == 3


def test_the_worst_pair_comes_first_and_ties_keep_their_order() -> None:
    audited = rows([0.5, -1.0, 0.5, 2.0])
    for ranking in MADE:
        assert [row.pair_id for row in worst_first(audited, ranking)] == ["p1", "p0", "p2", "p3"]
        assert (np.diff(risk(worst_first(audited, ranking), ranking)) <= 0).all()
