"""The figures of a ledger, from a small account worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.report.ledger.concentration import concentration_plot
from dynolab.report.ledger.fallen import (
    coloured,
    fallen_accounts,
    fallen_answers,
    fallen_figure,
    half_of_a_fall,
    hardest_side,
    on_text,
    pusher_section,
    strongest_pullers,
    summed_pushers,
)
from dynolab.report.ledger.page import (
    blocks_figure,
    ledger_map_figure,
    waterfall_figure,
    write_ledger_page,
)
from dynolab.report.style import excerpt, number
from dynolab.results.ledger import NOISY
from dynolab.results.ledger_reader import LedgerReader, Moment, Pulls
from tests.report.ledgers import write_ledger
from tests.report.parsed import Parsed


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerReader:
    return write_ledger(tmp_path)


def test_the_bars_lead_from_start_to_end(ledger: LedgerReader) -> None:
    figure = waterfall_figure(ledger)
    (bars,) = figure.plot.data
    assert list(bars.y) == [-10.0, 1.25, -3.5, 0.125, 0.0, -0.125, -12.25]
    start, *changes, end = bars.y
    assert start + sum(changes) == pytest.approx(end)
    (menu,) = figure.plot.layout.updatemenus
    assert [button.label for button in menu.buttons] == [
        "chosen y⁺, training, mean of 2",
        "b, chosen y⁺",
    ]
    assert list(menu.buttons[1].args[0]["y"][0]) == [-5.0, 2.5, -5.0, 0.0, 0.0, 0.0, -7.5]


def test_sampled_steps_count_for_those_that_were_not_drawn(
    ledger: LedgerReader, tmp_path: Path
) -> None:
    """Step 1 stands for three steps."""
    drawn = write_ledger(tmp_path, weight=3)
    (bars,) = waterfall_figure(drawn).plot.data
    whole = waterfall_figure(ledger).plot.data[0]
    lines = dict(zip(drawn.steps, drawn.by_step(drawn.accounts[0].lines, range(3)).T, strict=True))
    assert sum(bars.y[1:3]) == pytest.approx(sum(whole.y[1:3]) + 2 * np.nansum(lines[1]))
    assert len(bars.x) == len(whole.x) + 1
    assert bars.y[0] + sum(bars.y[1:-1]) == pytest.approx(bars.y[-1])
    # Sums of single examples stay those of the drawn steps.
    totals = drawn.by_example(drawn.accounts[0].lines)
    assert totals.tolist() == ledger.by_example(ledger.accounts[0].lines).tolist()


def test_pushers_are_summed_over_their_steps_and_sides(ledger: LedgerReader) -> None:
    single = ledger.accounts[1]
    down, *_, up = ledger.pushers(single.lines)
    assert (down.example, down.total) == ("a", -3.5)
    assert (down.from_chosen, down.from_rejected, down.steps) == (0.5, -4.0, (0,))
    assert (up.example, up.total) == ("b", 2.0)


def test_fallen_answers_are_split_by_who_pushed(ledger: LedgerReader) -> None:
    (fallen,) = fallen_answers(ledger)
    assert (fallen.change, fallen.own_chosen, fallen.own_rejected) == (-2.5, 2.0, 0.0)
    assert fallen.others == -4.5
    figure = fallen_figure(ledger)
    assert figure is not None
    assert [list(bars.x) for bars in figure.plot.data] == [[2.0], [0.0], [-4.5]]
    words = "|".join(Parsed(figure.beside).words)
    assert words.index("|78 %|−3.50|+0.500|−4.00") < words.index("|22 %|−1.00|+0.00|−1.00")


@pytest.mark.parametrize(
    ("totals", "half", "concentrated"),
    [
        ([-1.0] * 120, 60, False),
        ([-9.0] * 3 + [-0.2] * 100, 3, True),
        ([-5.0, -1.0, -1.0], 1, True),
        ([-2.0, -1.0, -1.0, -1.0], 2, False),
        ([], 0, False),
    ],
)
def test_a_fall_is_by_few_pairs_or_by_many(
    totals: list[float], half: int, concentrated: bool, ledger: LedgerReader
) -> None:
    """Pairs that lift do not count."""
    first = ledger.pushers(ledger.accounts[1].lines)[0]
    pushers = [replace(first, example=f"p{at}", total=nats) for at, nats in enumerate(totals)]
    pulls = Pulls.down([*pushers, replace(first, total=50.0)])
    assert (pulls.half, pulls.concentrated, len(pulls.pushers)) == (half, concentrated, len(totals))
    assert pulls.shares.sum() == pytest.approx(float(bool(totals)))
    sentence = half_of_a_fall(pulls)
    named = [push.example for push in pushers[:half]]
    assert (
        all(name in sentence for name in named)
        if concentrated
        else not totals or str(half) in sentence
    )


def test_the_hardest_pairs_shares_add_up_and_one_ten_and_half_are_marked(
    ledger: LedgerReader,
) -> None:
    first = ledger.pushers(ledger.accounts[1].lines)[0]
    pushers = [replace(first, example=f"p{at}", total=-float(12 - at)) for at in range(12)]
    _, shares, marked = concentration_plot(Pulls.down(pushers), 300).data
    assert len(shares.y) == 13 and (shares.y[0], shares.y[-1]) == (0, 1)
    assert shares.y[2] == pytest.approx(23 / 78, abs=1e-4)
    assert list(marked.x) == [1, 4, 10]  # 12 + 11 + 10 + 9 of 78 are more than half
    assert list(marked.y) == [shares.y[count] for count in marked.x]


def test_a_pair_that_pulled_stands_with_its_band(ledger: LedgerReader) -> None:
    figure = fallen_figure(ledger, {"a": "below"})
    plain = fallen_figure(ledger)
    assert figure is not None and plain is not None
    first, second = str(figure.beside).split("<tr>")[2:]
    assert "below its band" in first, "a pulled hardest"
    assert "its band" not in second + str(plain.beside)


def test_pairs_are_summed_over_the_fallen_answers(ledger: LedgerReader) -> None:
    mean, single = ledger.accounts
    other = replace(mean, row=single.row.model_copy(update={"name": "a", "pairs": ("a",)}))
    both = replace(ledger, accounts=(mean, single, other))
    assert {p.example: p.total for p in summed_pushers(both)} == {"a": -5.5, "c": -1.5, "b": 2.25}
    assert strongest_pullers(both) == ["a"]


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


def test_a_ledger_without_single_answers_has_no_such_table(ledger: LedgerReader) -> None:
    whole = LedgerReader(**{**vars(ledger), "accounts": ledger.accounts[:1]})
    assert (pusher_section(whole), fallen_figure(whole), strongest_pullers(whole)) == (
        None,
        None,
        [],
    )


def test_bars_of_blocks_are_sums_over_the_steps(ledger: LedgerReader) -> None:
    figure = blocks_figure(ledger)
    assert figure is not None
    up, down = figure.plot.data
    assert list(up.x) == ["layers.0", "lm_head"]
    assert list(up.y) == [2.5, 0.0]
    assert list(down.y) == [-1.5, -3.5]


def test_the_map_is_empty_where_an_example_was_in_no_batch(ledger: LedgerReader) -> None:
    figure = ledger_map_figure(ledger)
    (cells,) = figure.plot.data
    assert list(cells.y) == ["b", "c", "a"]
    assert [list(row) for row in cells.z] == [[None, 0.25], [None, -0.5], [-2.0, None]]


def page_of(ledger: LedgerReader, folder: Path) -> str:
    write_ledger_page(ledger, "small", "name: small", (), folder)
    return (folder / "ledger.html").read_text()


def test_the_page_is_whole_and_says_how_much_was_rounding_and_when_it_was_too_much(
    ledger: LedgerReader, tmp_path: Path
) -> None:
    for share, shown in ((1e-6, ""), (0.02, "2 % rounding"), (0.3, "too much rounding")):
        summary = ledger.summary.model_copy(update={"rounding_share": share})
        page = page_of(replace(ledger, summary=summary), tmp_path)
        assert shown in page and ("too much rounding" in page) == (share > NOISY)
    assert 'id="pushers"' in page and 'id="ledger-blocks"' in page


def test_pairs_of_several_sources_are_summed_by_source(
    ledger: LedgerReader, tmp_path: Path
) -> None:
    assert 'id="sources"' not in page_of(ledger, tmp_path)
    names = {"a": "news/a", "b": "tales/b", "c": "tales/c"}
    mixed = replace(ledger, example=np.array([names[name] for name in ledger.example]))
    section = page_of(mixed, tmp_path).split('<section id="sources">')[1].split("</section>")[0]
    mean = next(account for account in ledger.accounts if not account.row.single)
    did = dict(zip(ledger.examples, ledger.by_example(mean.lines), strict=True))
    for source, pairs in (("news", "a"), ("tales", "bc")):
        row = section.split(f">{source}<")[1].split("</tr>")[0]
        assert f">{len(pairs)}<" in row
        assert f">{number(sum(did[pair] for pair in pairs), sign=True)}<" in row


def test_excerpts_are_of_whole_words() -> None:
    text = "one two three four five six seven"
    assert excerpt(text, 16) == "one two three […]"
    assert excerpt(text, 16, end=True) == "[…] five six seven"
    assert excerpt("a" * 20, 12) == "a" * 12 + " […]"
    assert excerpt("a few\nwords") == "a few words"


def test_an_answer_that_rose_is_not_among_those_that_fell(ledger: LedgerReader) -> None:
    """Unless none fell."""
    fell = next(account for account in ledger.accounts if account.row.single)
    assert fell.end < fell.start
    rose = replace(fell, end=fell.start + 1)
    assert fallen_accounts(replace(ledger, accounts=(rose, fell))) == [fell]
    assert fallen_accounts(replace(ledger, accounts=(rose,))) == [rose]


def test_tokens_are_those_of_the_side_that_is_known_to_have_pulled(ledger: LedgerReader) -> None:
    """Of a step in which both pulled the harder one has tokens, whichever pulled more in all."""
    account = next(account for account in ledger.accounts if account.row.single)
    both = replace(
        ledger.pushers(account.lines)[0], example="a", from_chosen=-0.42, from_rejected=-0.43
    )
    moments = [
        Moment("a", "chosen", -0.42, (("well", -0.42),)),
        Moment("a", "rejected", -0.01, (("no", -0.01),)),
    ]
    assert hardest_side(both, moments) == ("chosen", [("well", -0.42)])
    assert hardest_side(both, []) == ("rejected", [])
