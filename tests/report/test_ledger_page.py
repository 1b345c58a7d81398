"""The figures of a ledger, from a small account worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.report.inputs.ledger import Ledger, Moment
from dynolab.report.ledger.blocks import blocks_figure
from dynolab.report.ledger.coloured import coloured, on_text
from dynolab.report.ledger.fallen import fallen_accounts, hardest_side
from dynolab.report.ledger.heat_map import ledger_map_figure
from dynolab.report.ledger.named_tokens import strongest_tokens, token_in_text
from dynolab.report.ledger.page import write_ledger_page
from dynolab.report.ledger.pullers import puller_section
from dynolab.report.ledger.pushers import pusher_section
from dynolab.report.ledger.sources import sources_figure
from dynolab.report.ledger.steps import step_figure
from dynolab.report.ledger.waterfall import waterfall_figure
from dynolab.report.text import excerpt
from tests.report.ledgers import write_ledger
from tests.report.parsed import Parsed


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return write_ledger(tmp_path)


def test_the_bars_lead_from_start_to_end(ledger: Ledger) -> None:
    figure = waterfall_figure(ledger)
    (bars,) = figure.plot.data
    assert list(bars.y) == [-10.0, 1.25, -3.5, 0.125, 0.0, -0.125, -12.25]
    start, *changes, end = bars.y
    assert start + sum(changes) == pytest.approx(end)
    assert "chosen y⁺ −2.25 = +1.25 from chosen and −3.50 from rejected" in figure.message
    (menu,) = figure.plot.layout.updatemenus
    assert [button.label for button in menu.buttons] == [
        "chosen y⁺, training, mean of 2",
        "b, chosen y⁺",
    ]
    assert list(menu.buttons[1].args[0]["y"][0]) == [-5.0, 2.5, -5.0, 0.0, 0.0, 0.0, -7.5]


def test_sampled_steps_count_for_those_that_were_not_drawn(ledger: Ledger) -> None:
    """Step 1 stands for three steps."""
    summary = ledger.summary.model_copy(update={"every": 3})
    drawn = replace(ledger, summary=summary, weights=np.array([1, 3]))
    (bars,) = waterfall_figure(drawn).plot.data
    whole = waterfall_figure(ledger).plot.data[0]
    lines = dict(zip(drawn.steps, drawn.by_step(drawn.accounts[0], range(3)).T, strict=True))
    assert sum(bars.y[1:3]) == pytest.approx(sum(whole.y[1:3]) + 2 * np.nansum(lines[1]))
    assert list(bars.x)[-2:] == ["steps not drawn", "end"]
    assert bars.y[0] + sum(bars.y[1:-1]) == pytest.approx(bars.y[-1])
    assert "One step of 3 was drawn" in waterfall_figure(drawn).message
    assert sources_figure(drawn) is None
    # Sums of single examples stay those of the drawn steps.
    totals = drawn.by_example(drawn.accounts[0])
    assert totals.tolist() == ledger.by_example(ledger.accounts[0]).tolist()


def test_pushers_are_summed_over_their_steps_and_sides(ledger: Ledger) -> None:
    single = ledger.accounts[1]
    down, *_, up = ledger.pushers(single)
    assert (down.example, down.total) == ("a", -3.5)
    assert (down.from_chosen, down.from_rejected, down.steps) == (0.5, -4.0, (0,))
    assert (up.example, up.total) == ("b", 2.0)


def test_the_table_names_who_pulled_an_answer_down(ledger: Ledger) -> None:
    section = pusher_section(ledger)
    assert section is not None
    shown = str(section.markup)
    assert "pulled down by a (−3.5), c (−1.0)</span>" in re.sub("(?s)</?abbr.*?>", "", shown)
    assert "Its own pair did +2.00" in shown
    assert "what is b" in shown and "&lt;i&gt;no&lt;/i&gt;" in shown
    assert "“&lt;b&gt;” −3.5" in shown, "the strongest line by token"
    assert "<b>&" not in shown and "<i>" not in shown


def test_pairs_are_listed_with_whom_they_lowered_and_lifted(ledger: Ledger) -> None:
    mean, single = ledger.accounts
    other = replace(mean, row=single.row.model_copy(update={"name": "a", "pairs": ("a",)}))
    section = puller_section(replace(ledger, accounts=(mean, single, other)))
    assert section is not None
    assert section.message == "“a” pulled 2 of these 2 answers down, by 5.5 nats together."
    words = "".join(Parsed(str(section.markup)).words)
    assert "a−5.50−5.50b −3.5, a −2.0none" in words
    assert words.index("a−5.50") < words.index("c−1.50") < words.index("b+2.25+0.00none")
    assert puller_section(replace(ledger, accounts=(mean,))) is None
    alone = puller_section(replace(ledger, accounts=(mean, single)))
    assert alone is not None and alone.message.startswith("“a” pulled this answer down, by 3.5")


def test_an_answers_steps_have_a_bar_for_either_side(ledger: Ledger) -> None:
    figure = step_figure(ledger)
    assert figure is not None
    chosen, rejected = figure.plot.data
    assert list(chosen.x) == [0, 1]
    assert (list(chosen.y), list(rejected.y)) == ([0.5, 2.0], [-4.0, -1.0])
    assert "hardest by step 0: +0.500 nats from its chosen and −4.00" in figure.message
    assert step_figure(replace(ledger, accounts=ledger.accounts[:1])) is None


@pytest.mark.parametrize(
    ("tokens", "text", "words"),
    [
        ([" it", " is", "<eos>"], "it is", ["it", " is", "<eos>"]),
        (["it", "is", "<eos>"], " it is", [" it", " is", "<eos>"]),
        ([" so", "ðŁĺ", "Ģ", " yes"], "so 😀 yes", [" so", " 😀", " yes"]),
        ([" لا", " نعم"], "لا نعم", ["لا", " نعم"]),
        (["a", "b"], "", ["a", "b"]),
        ([" other", " words"], "it is", ["it is"]),
    ],
)
def test_tokens_stand_in_their_text(tokens: list[str], text: str, words: list[str]) -> None:
    """Parts of a character are put together; what the text does not hold keeps its name."""
    shown = on_text([(token, 1.0) for token in tokens], text)
    assert [word.strip() for word, _ in shown] == [word.strip() for word in words]
    assert sum(nats for _, nats in shown) == len(tokens)


def test_a_long_text_is_shown_around_its_hardest_push() -> None:
    tokens = [(f" w{n}", -1.0 if n == 15_000 else -1e-3) for n in range(20_000)]
    shown = coloured(tokens, "".join(token for token, _ in tokens))
    assert " w15000<" in shown and " w100<" not in shown
    assert shown.startswith("[…] ") and shown.endswith(" […]")
    assert shown.count("<span") == 120


def test_a_ledger_without_single_answers_has_no_such_table(ledger: Ledger) -> None:
    whole = Ledger(**{**vars(ledger), "accounts": ledger.accounts[:1]})
    assert pusher_section(whole) is None


def test_bars_of_blocks_are_sums_over_the_steps(ledger: Ledger) -> None:
    figure = blocks_figure(ledger)
    assert figure is not None
    up, down = figure.plot.data
    assert list(up.x) == ["layers.0", "lm_head"]
    assert list(up.y) == [2.5, 0.0]
    assert list(down.y) == [-1.5, -3.5]
    assert "layers.0 carried most: +2.50 from chosen and −1.50 from rejected" in figure.message


def test_the_map_is_empty_where_an_example_was_in_no_batch(ledger: Ledger) -> None:
    figure = ledger_map_figure(ledger)
    (cells,) = figure.plot.data
    assert list(cells.y) == ["b", "c", "a"]
    assert [list(row) for row in cells.z] == [[None, 0.25], [None, -0.5], [-2.0, None]]


def test_accumulated_influence_stands_beside_the_path(ledger: Ledger) -> None:
    figure = sources_figure(ledger)
    assert figure is not None
    moved, influence = figure.plot.data
    assert list(moved.y) == [0.0, -3.5, -2.5]
    assert list(influence.y) == pytest.approx([0.0, -2.0, -2.0 + (0.9 * -2.0 + 0.1 * 0.5)])


def test_the_page_is_whole(ledger: Ledger, tmp_path: Path) -> None:
    write_ledger_page(ledger, "small", "name: small", (), tmp_path)
    page = (tmp_path / "ledger.html").read_text()
    assert "Who pulled these answers down" in page and "closes to" in page.lower()
    assert (tmp_path / "figures" / "ledger-map.json").exists()


def test_a_token_is_named_with_its_word() -> None:
    """Parts of a word are named with it, also where punctuation stands between words."""
    tokens = [(" the", 1.0), (" r", -2.0), ("ig", 0.5), ("ht", -3.0), (".", -1.0), (" I", 0.0)]
    named = [token_in_text(tokens, place) for place in range(6)]
    assert named == [
        "“the”",
        "“r” of “right”",
        "“ig” of “right”",
        "“ht” of “right”",
        "“.” after “right”",
        "“I”",
    ]
    strongest = strongest_tokens(tokens, 2, down=True)
    assert strongest == "“ht” of “right” −3.0, “r” of “right” −2.0"


def test_tokens_that_look_alike_are_told_apart() -> None:
    texts = [" ", "no", ", ", "n", "o", " ", "and", " no", "\n"]
    tokens = [(text, 0.0) for text in texts]
    assert [token_in_text(tokens, place) for place in range(len(texts))] == [
        "a space",
        "the 1st “no”",
        "“,” after “no”",
        "“n” of “no”",
        "“o” of “no”",
        "a space after “no”",
        "“and”",
        "the 2nd “no”",
        "a line break after “no”",
    ]
    breaks = [(text, 0.0) for text in ("one", "\n", "\n")]
    assert token_in_text(breaks, 2) == "the 2nd line break after “one”"
    digits = ["3", "2", "3", "4", " ", "-", "-", " ", "3", "2", "3", "4"]
    named = [token_in_text([(text, 0.0) for text in digits], place) for place in range(12)]
    assert named[:3] == [
        "the 1st “3” of the 1st “3234”",
        "“2” of the 1st “3234”",
        "the 2nd “3” of the 1st “3234”",
    ]
    assert named[5:7] == ["the 1st “-” after “3234”", "the 2nd “-” after “3234”"]
    assert named[10] == "the 2nd “3” of the 2nd “3234”"


def test_excerpts_are_of_whole_words() -> None:
    text = "one two three four five six seven"
    assert excerpt(text, 16) == "one two three […]"
    assert excerpt(text, 16, end=True) == "[…] five six seven"
    assert excerpt("a" * 20, 12) == "a" * 12 + " […]"


def test_an_answer_that_rose_is_not_among_those_that_fell(ledger: Ledger) -> None:
    """Unless none fell."""
    fell = next(account for account in ledger.accounts if account.row.single)
    assert fell.end < fell.start
    rose = replace(fell, end=fell.start + 1)
    assert fallen_accounts(replace(ledger, accounts=(rose, fell))) == [fell]
    assert fallen_accounts(replace(ledger, accounts=(rose,))) == [rose]


def test_tokens_are_those_of_the_side_that_is_known_to_have_pulled(ledger: Ledger) -> None:
    """Of a step in which both pulled the harder one has tokens, whichever pulled more in all."""
    account = next(account for account in ledger.accounts if account.row.single)
    both = replace(ledger.pushers(account)[0], example="a", from_chosen=-0.42, from_rejected=-0.43)
    moments = [
        Moment(0, "a", "chosen", -0.42, (("well", -0.42),)),
        Moment(20, "a", "rejected", -0.01, (("no", -0.01),)),
    ]
    assert hardest_side(both, moments) == ("chosen", [("well", -0.42)])
    assert hardest_side(both, []) == ("rejected", [])
