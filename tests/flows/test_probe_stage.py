from __future__ import annotations

from collections import Counter

from dynolab.data.rows import Example, read_rows
from dynolab.data.world.answer_kinds import RIGHT, answer_kind
from dynolab.data.world.lexicon import answered, facts_in, statements
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


def test_answers_are_told_by_what_they_say_and_have_from_others(analysed: Analysed) -> None:
    models = {"base": analysed.base, "sft": analysed.sft, "preference": analysed.sft}
    found = analysed.run(PROBE, ProbeConfig(), data=analysed.data, **models)
    answers = list(read_rows(analysed.folder(found) / "answers.jsonl", Answer))
    data = analysed.folder(analysed.data)
    rows = list(read_rows(data / "train.jsonl", Example))
    corpus = {
        fact for row in read_rows(data / "corpus.jsonl", Example) for fact in statements(row.chosen)
    }
    for answer in answers:
        truth = answered(answer.prompt, answer.chosen)
        assert answer.says == answer_kind(answer.prompt, answer.answer, truth)
        assert answer.stated == (statements(answer.chosen)[0] in corpus)
        words, own = answer.answer.split(), answer.chosen
        runs = [" ".join(words[n : n + 3]) for n in range(len(words) - 2)]
        others = [run for run in runs if run not in own and any(run in row.chosen for row in rows)]
        assert answer.borrowed == (len(others) / len(runs) if runs else None)
    assert {answer.stated for answer in answers} == {True, False}
    for name in MODELS:
        said = [answer for answer in answers if (answer.model, answer.split) == (name, "train")]
        right = sum(answer.says in RIGHT for answer in said) / len(said)
        assert found.metrics[f"probe/train/right/{name}"] == right
