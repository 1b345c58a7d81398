"""Whole probe sets: from data, from a policy, and from a writer behind a real HTTP server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.probes.build import watched_pairs
from dynolab.data.probes.kinds import DATA_KINDS, KINDS, POLICY_KINDS, WRITER_KINDS
from dynolab.data.rows import Example
from dynolab.endpoint import AnswerCache, Endpoint, EndpointConfig
from dynolab.errors import ConfigError
from dynolab.probes.making.probe_set import ProbeSetConfig, build_probe_set
from dynolab.probes.making.written import SUBJECTS, Policy, has_text, rows_from_policy
from dynolab.rollouts.decoding import SampleConfig, sample_responses
from tests.endpoint.server import KEY, ChatServer, Said, Seen, chat_server, good
from tests.training.small import make_policy, make_tokenizer

TRAIN = [
    Example(id=f"t{n}", prompt=f"w{n} w1", chosen=f" w2 w{n} w3", rejected=f" w4 w{n}")
    for n in range(6)
]
HELDOUT = [
    Example(id=f"h{n}", prompt=f"w{n} w9", chosen=f" w8 w{n}", rejected=f" w7 w{n} w6")
    for n in range(4)
]
TOKENIZER = make_tokenizer()
POLICY = Policy(make_policy(TOKENIZER), TOKENIZER, "base/0123")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as started:
        started.answer = write
        yield started


def write(seen: Seen) -> Said:
    """As a good writer does: another text in tags."""
    return good(f"Certainly! <answer>\n made {len(seen.text)} {seen.text[-5:]} </answer> Anything?")


def config(*kinds: str, **settings: Any) -> ProbeSetConfig:
    writer = {"model": "m"} if set(kinds) & set(WRITER_KINDS) else None
    whole = {"kinds": ("chosen", *kinds), "pairs": 3, "max_new_tokens": 5, "writer": writer}
    return ProbeSetConfig.model_validate(whole | settings)


def writer(server: ChatServer, folder: Path, **settings: Any) -> Endpoint:
    return Endpoint(
        EndpointConfig(model="m", requests_per_minute=60_000, **settings),
        AnswerCache(folder),
        key=KEY,
        address=server.address,
        usable=has_text,
    )


def test_all_thirteen_kinds_for_every_pair_in_one_order(server: ChatServer, tmp_path: Path) -> None:
    whole = config(*(kind for kind in KINDS if kind != "chosen"))
    built = build_probe_set(whole, TRAIN, HELDOUT, policy=POLICY, endpoint=writer(server, tmp_path))
    assert built.missing == []
    watched = [("train", row) for row in TRAIN[:3]] + [("heldout", row) for row in HELDOUT[:3]]
    assert [(row.split, row.pair_id, row.kind) for row in built.rows] == [
        (split, pair.id, kind) for split, pair in watched for kind in whole.kinds
    ]
    assert set(whole.kinds) == set(DATA_KINDS) | set(POLICY_KINDS) | set(WRITER_KINDS)
    for row in built.rows:
        assert row.response == "" or row.response == " " + row.response.strip()
        assert row.made_by and KEY not in row.model_dump_json()
    assert built.counts["probes/rows"] == 6 * 13
    assert len(server.seen) == 6 * 5


def test_a_draw_does_not_depend_on_what_else_is_built() -> None:
    whole = build_probe_set(config(*DATA_KINDS[1:], pairs=4), TRAIN, HELDOUT)
    part = build_probe_set(config("irr_test", "irr_train", pairs=2), TRAIN, HELDOUT)
    assert set(part.rows) < set(whole.rows)


def test_heldout_pairs_that_training_sees_are_not_watched() -> None:
    leaks = [HELDOUT[0].model_copy(update={"id": "leak", "chosen": TRAIN[5].rejected})]
    built = build_probe_set(config("irr_test"), TRAIN, [*leaks, *HELDOUT])
    assert "leak" not in {row.pair_id for row in built.rows}
    assert not any(TRAIN[5].rejected == row.response for row in built.rows)


def test_the_policys_rows_are_its_samples_cut_at_the_next_human_turn() -> None:
    sampling = SampleConfig(max_new_tokens=6, seed=3, stop=("w1",))
    watched = watched_pairs(TRAIN, HELDOUT, 4)
    rows, missing = rows_from_policy(POLICY, watched, kinds=["chosen_initial"], sampling=sampling)
    prompts = [pair.example.prompt for pair in watched]
    samples = sample_responses(POLICY.model, TOKENIZER, prompts, sampling)
    assert missing == []
    assert [row.response.strip() for row in rows] == [sample.text.strip() for sample in samples]
    assert not any("w1" in row.response for row in rows)
    assert ["cut" in row.flags for row in rows] == [not sample.finished for sample in samples]
    assert {row.made_by for row in rows} == {"sampled, by base/0123 at temperature 1"}


def test_a_pair_without_words_has_no_rephrase_and_is_listed(
    server: ChatServer, tmp_path: Path
) -> None:
    empty = TRAIN[0].model_copy(update={"chosen": ""})
    kinds = config("chosen_selfr", "chosen_gptsemantic", "irr_hum", most_missing=0.2)
    built = build_probe_set(
        kinds, [empty, *TRAIN[1:]], HELDOUT, policy=POLICY, endpoint=writer(server, tmp_path)
    )
    assert {(row.pair_id, row.kind) for row in built.missing} == {
        ("t0", kind) for kind in ("chosen_selfr", "chosen_gptsemantic", "irr_hum")
    }
    assert all("no words" in row.reason for row in built.missing)
    flags = {row.kind: row.flags for row in built.rows if row.pair_id == "t0"}
    assert flags == {"chosen": ("empty",)}


def test_a_pair_without_a_rejected_answer_lacks_that_side(
    server: ChatServer, tmp_path: Path
) -> None:
    bare = [row.model_copy(update={"rejected": None}) for row in TRAIN]
    built = build_probe_set(
        config("rejected", "reject_gptformat"), bare, HELDOUT, endpoint=writer(server, tmp_path)
    )
    assert Counter((row.split, row.kind) for row in built.rows) == {
        ("train", "chosen"): 3,
        ("heldout", "chosen"): 3,
        ("heldout", "rejected"): 3,
        ("heldout", "reject_gptformat"): 3,
    }
    assert built.missing == []


def test_rows_of_the_writer_say_how_they_were_asked_for(server: ChatServer, tmp_path: Path) -> None:
    built = build_probe_set(
        config("chosen_gptsemantic", "irr_hum"), TRAIN, HELDOUT, endpoint=writer(server, tmp_path)
    )
    made_by = {row.kind: row.made_by for row in built.rows}
    assert made_by["chosen_gptsemantic"] == "written by m at temperature 0.7, prompt semantic-1"
    assert made_by["irr_hum"] == "written by m at temperature 0.7, prompt human-1"
    assert all("Certainly" not in row.response for row in built.rows)
    about = [text for text in server.texts if "passage of 3 words" in text]
    assert len(about) == 3 and all(any(subject in text for subject in SUBJECTS) for text in about)
    for pair in TRAIN[:3]:
        assert any(text.endswith(pair.chosen.strip()) for text in server.texts)


@pytest.mark.parametrize(
    ("answer", "finish", "text", "flag"),
    [
        ("<answer>half a", "length", " half a", "cut"),
        (" bare words ", "stop", " bare words", "untagged"),
    ],
)
def test_answers_without_their_tags_and_cut_ones_are_kept_and_flagged(
    answer: str, finish: str, text: str, flag: str, server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda seen: good(answer, finish=finish)
    endpoint = writer(server, tmp_path)
    built = build_probe_set(config("irr_hum"), TRAIN[:2], [], endpoint=endpoint)
    kept = [(row.response, row.flags) for row in built.rows if row.kind == "irr_hum"]
    assert kept == [(text, (flag,))] * 2


def test_rows_that_stay_unanswered_are_absent_and_listed_with_the_reason(
    server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda seen: good("<answer> </answer>") if "w2 w1" in seen.text else write(seen)
    kinds = config("chosen_gptsemantic", "chosen_gptformat", most_missing=0.2)
    endpoint = writer(server, tmp_path, attempts=2)
    built = build_probe_set(kinds, TRAIN, HELDOUT, endpoint=endpoint)
    assert {(row.pair_id, row.split, row.kind, row.reason) for row in built.missing} == {
        ("t1", "train", kind, "the answer holds no text")
        for kind in ("chosen_gptsemantic", "chosen_gptformat")
    }
    assert len(built.rows) == 6 * 3 - 2
    assert built.counts["probes/missing"] == 2
    assert endpoint.counts["empty"] == 4 and endpoint.counts["given_up"] == 2


def test_rows_that_the_writer_declines_are_listed_and_not_taken_for_texts(
    server: ChatServer, tmp_path: Path
) -> None:
    filtered = good("<answer>half a text", finish="content_filter")
    server.answer = lambda seen: filtered if "w2 w1" in seen.text else write(seen)
    kinds = config("chosen_gptsemantic", most_missing=0.2)
    built = build_probe_set(kinds, TRAIN, HELDOUT, endpoint=writer(server, tmp_path))
    assert [(row.pair_id, row.reason) for row in built.missing] == [("t1", "the writer declined")]
    assert len(server.seen) == 6


def test_too_many_unanswered_rows_end_it_and_the_next_run_asks_only_for_them(
    server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda seen: good("") if "w2 w1" in seen.text else write(seen)
    kinds = config("chosen_gptsemantic")
    with pytest.raises(ConfigError, match=r"1 of the writer's 6 rows .* the answer holds no text"):
        build_probe_set(kinds, TRAIN, HELDOUT, endpoint=writer(server, tmp_path))
    server.answer = write
    again = writer(server, tmp_path)
    assert build_probe_set(kinds, TRAIN, HELDOUT, endpoint=again).missing == []
    assert again.counts == {"kept": 5, "requests": 1, "answered": 1}


def test_kinds_that_the_data_bring_are_taken_over() -> None:
    first = build_probe_set(config("irr_train", seed=5), TRAIN, HELDOUT)
    held = [row for row in first.rows if row.pair_id != "t1"]
    built = build_probe_set(
        config("irr_train", "rejected", taken=("irr_train",)), TRAIN, HELDOUT, extra=held
    )
    assert [r for r in built.rows if r.kind == "irr_train"] == [
        row for row in held if row.kind == "irr_train"
    ]
    (missing,) = built.missing
    assert (missing.pair_id, missing.kind) == ("t1", "irr_train")
    with pytest.raises(ConfigError, match="taken = 'irr_train': the data have no rows"):
        build_probe_set(config("irr_train", taken=("irr_train",)), TRAIN, HELDOUT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ["rejected"]}, "kinds = ['rejected']: add chosen"),
        ({"kinds": ["chosen", "chosen"]}, "kinds = 'chosen': must be listed only once"),
        ({"kinds": ["chosen"], "taken": ["irr_hum"]}, "taken = 'irr_hum': not in kinds"),
        ({"kinds": ["chosen", "irr_hum"]}, "writer = None: irr_hum needs a writer"),
        ({"kinds": ["chosen", "y*"]}, "Input should be"),
        ({"writer": {"model": "m", "api_key": KEY}}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as raised:
        ProbeSetConfig.model_validate(settings)
    assert message in str(raised.value)


def test_taken_kinds_need_neither_writer_nor_policy() -> None:
    taken = ProbeSetConfig(kinds=KINDS, taken=(*POLICY_KINDS, *WRITER_KINDS))
    assert taken.policy_kinds == taken.writer_kinds == ()
    with pytest.raises(ConfigError, match="needs the untrained policy"):
        build_probe_set(config("chosen_initial"), TRAIN, HELDOUT)
    with pytest.raises(ConfigError, match="needs the writer's endpoint"):
        build_probe_set(config("irr_hum"), TRAIN, HELDOUT)
