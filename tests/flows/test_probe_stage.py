from __future__ import annotations

from collections import Counter

from dynolab.data.rows import Example, read_rows
from dynolab.data.world.lexicon import facts_in
from dynolab.results.study import Answer
from tasks.probe import MODELS, PROBE, ProbeConfig
from tests.flows.analysed import Analysed


def test_heldout_answers_are_searched_for_those_of_training_questions(analysed: Analysed) -> None:
    models = {"base": analysed.base, "sft": analysed.sft, "preference": analysed.sft}
    config = ProbeConfig(answers=3)
    found = analysed.run(PROBE, config, data=analysed.data, **models)
    answers = list(read_rows(analysed.folder(found) / "answers.jsonl", Answer))
    asked = Counter((answer.model, answer.split) for answer in answers)
    assert asked == {
        (name, split): n for name in MODELS for split, n in (("train", 3), ("heldout", 3))
    }
    rows = list(read_rows(analysed.folder(analysed.data) / "train.jsonl", Example))
    entities = frozenset(row.prompt.split()[-2] for row in rows)
    facts = {row.id: facts_in(row.chosen, entities)[0] for row in rows}
    for answer in answers:
        stated = facts_in(answer.answer, entities)
        asked = (stated[0].entity, stated[0].attribute) if len(stated) == 1 else None
        same = [name for name, fact in facts.items() if (fact.entity, fact.attribute) == asked]
        repeats = answer.split == "heldout" and bool(same)
        assert answer.taken_from == (same[0] if repeats else None)
        assert answer.taken_exactly == (repeats and facts[same[0]] == stated[0])
    for name in MODELS:
        said = [answer for answer in answers if answer.model == name and answer.split == "heldout"]
        share = sum(one.taken_from is not None for one in said) / len(said)
        assert found.metrics[f"probe/heldout/hallucinated/{name}"] == share
