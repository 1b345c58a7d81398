"""What the texts say of findings is what kept tables of runs hold, figure by figure.

Under a paragraph of `deploy/studies/README.md` and `BY_STUDY.md` an invisible comment names the
source of each of its figures, in their order:

    <!-- figures
    0.91 [0.90, 0.92] = classification-builtin: images/detects/AUC
    86% [84, 89] = squeezing-builtin: 100 - 100 * model/last_layer/rejected/left over, 1 − R²
    20,000 = squeezing_builtin.yaml
    pass@16 = name
    -->

that is an estimate or a number of `results/<table>.json`, rescaled where the text has another
unit; a setting of a study file; or a name and no figure. README and manual say only what stands
there: each of their shares and decimals is a figure of these texts, or of the example that
`docs/pictures.py` draws. The table of claims is the one that kept tables give, and what is due to
be measured again, since a stage has been changed, is listed here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import false_discovery_control, ttest_1samp

pytest.importorskip("matplotlib", reason="the manual's pictures")
from docs import claims, pictures, seeds
from dynolab.statistics import Interval, mean_interval
from tests.flows.lab import ROOT

STUDIES = ROOT / "deploy" / "studies"
RESULTS = STUDIES / "results"
NUMBER = r"[+−-]?\d+(?:,\d{3})*(?:\.\d+)?%?"
FIGURE = re.compile(
    rf"(?<![\w@.×^=/])(?P<mean>{NUMBER})(?:(?:\s+(?:nats|points))?\s+\[(?P<low>{NUMBER}),\s+(?P<high>{NUMBER})\])?(?![\w×])"
)
CODE = re.compile(
    r"```[^`]*```|`[^`]*`|\]\([^)]*\)|^    .*$|^#.*$|^\|.*$"
    r"|\b\d{4}\.\d{5}\b|Pythia-410m|(Python |Prefect |Apache-|Qwen)[\d.]+(-0\.5B)?",
    re.MULTILINE,
)
TEXTS = [(STUDIES / name).read_text() for name in ("README.md", "BY_STUDY.md")]
LIFT, LOWER = pictures.force(1), pictures.force(2, -1)
EXAMPLES = [
    math.e,  # a nat
    *pictures.PREDICTED,
    *(x for gradient in (LIFT, LOWER, LIFT + LOWER) for x in pictures.first_order(gradient)),
    *(pictures.PREDICTED @ gradient for gradient in (LIFT, LOWER)),
    *(rate * pictures.first_order(LIFT)[1] for rate in (0.1, 1)),
    *(pictures.stepped(LIFT, rate)[1] for rate in (0.1, 1)),
    *(path[-1] for path in pictures.account()),
    0.001,  # what its account leaves, at most
]
"""Numbers of the example on one softmax."""

SOURCE = re.compile(
    r"(?P<figure>.+?) = (?:(?P<table>[\w.-]+): )?"
    r"(?:(?P<add>-?[\d.]+) (?P<sign>[+-]) )?(?:(?P<factor>[\d.]+) \* )?(?P<name>.+)"
)


def value_of(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").replace("%", ""))


def figures_of(text: str) -> list[str]:
    """The figures of a paragraph with their intervals, white space made one blank."""
    prose = CODE.sub(" ", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
    prose = re.sub(r"(?<=\d) %", "%", prose).replace("1 − R²", "").replace("95%", "")
    return [re.sub(r"\s+", " ", figure[0]) for figure in FIGURE.finditer(prose)]


def paragraphs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every paragraph with the lines of the comment after it."""
    parts = re.split(r"\n\n+", text)
    for part in parts:
        comment = re.search(r"<!-- figures\n(.*?)\n-->", part, re.DOTALL)
        yield part, comment[1].splitlines() if comment else []


def agrees(figure: str, exact: dict[str, float | None]) -> bool:
    """Whether the printed digits are those of the exact numbers."""
    parts = FIGURE.fullmatch(figure)
    assert parts, figure
    for part in ("mean", "low", "high"):
        printed = parts[part]
        if printed is None:
            continue
        known = exact.get(part)
        digits = len(printed.rstrip("%").partition(".")[2])
        if known is None or abs(value_of(printed) - known) > 0.5000001 * 10.0**-digits:
            return False
    return True


def looked_up(table: str, name: str) -> dict[str, float | None]:
    kept = json.loads((RESULTS / f"{table}.json").read_text())
    estimate: dict[str, float | None] | None = kept["estimates"].get(name)
    if estimate is not None:
        return estimate
    ends = {end: kept["numbers"].get(f"{name}_{end}") for end in ("low", "high")}
    return {"mean": kept["numbers"][name], **ends}


def rescaled(exact: dict[str, float | None], add: float, factor: float) -> dict[str, float | None]:
    moved = {
        part: None if (x := exact.get(part)) is None else add + factor * x
        for part in ("mean", "low", "high")
    }
    if factor < 0:
        moved["low"], moved["high"] = moved["high"], moved["low"]
    return moved


def settings_of(known: Any) -> Iterator[float]:
    if isinstance(known, dict):
        known = list(known.values())
    if isinstance(known, list):
        for value in known:
            yield from settings_of(value)
    elif isinstance(known, int | float):
        yield float(known)


def check(line: str) -> None:
    """One source line; what it names has to be what it says."""
    parts = SOURCE.fullmatch(line)
    assert parts, f"{line!r} is no source: write `FIGURE = TABLE: NAME`"
    figure, table, name = parts["figure"], parts["table"], parts["name"]
    if table is None and name == "name":
        return
    if table is None:
        known = set(settings_of(yaml.safe_load((STUDIES / name).read_text())))
        value = value_of(figure)
        assert value in known or ("%" in figure and round(value / 100, 6) in known), line
        return
    factor = float(parts["factor"] or 1) * (-1 if parts["sign"] == "-" else 1)
    exact = rescaled(looked_up(table, name), float(parts["add"] or 0), factor)
    assert agrees(figure, exact), f"{line}: the table has {exact}"


@pytest.mark.parametrize(
    ("text", "sources"),
    [pair for text in TEXTS for pair in paragraphs(text) if figures_of(pair[0])],
)
def test_every_figure_of_a_paragraph_has_a_source_that_says_it(
    text: str, sources: list[str]
) -> None:
    assert figures_of(text) == [line.partition(" = ")[0] for line in sources]
    for line in sources:
        check(line)


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        *(file for file in ROOT.glob("docs/*/*.md") if not {"_build", "wings"} & {*file.parts}),
        *ROOT.glob("*/docs/*.md"),
    ],
    ids=lambda page: page.stem,
)
def test_a_page_says_of_findings_what_stands_beside_the_studies(page: Path) -> None:
    known = {f for one in TEXTS for text, _ in paragraphs(one) for f in figures_of(text)}
    figures = [f for f in figures_of(page.read_text()) if re.search(r"\[|%|\d\.\d", f)]
    assert [f for f in figures if f not in known and not of_example(f)] == []


def of_example(figure: str) -> bool:
    parts = FIGURE.fullmatch(figure)
    if parts is None or parts["low"] or "%" in figure:
        return False
    # The text says "loses 2.77": its sign is in the verb.
    size = str(abs(value_of(figure)))
    return any(agrees(size, {"mean": abs(float(number))}) for number in EXAMPLES)


def test_the_table_of_claims_is_that_of_the_kept_tables() -> None:
    page = (STUDIES / "README.md").read_text()
    assert claims.with_table(page) == page, "run python docs/claims.py"
    cells = [cells for own in claims.claims().values() for cells in own.values()]
    assert all(cells), "a claim was tried nowhere"


def test_a_cell_is_judged_by_its_interval_its_unit_and_its_cases() -> None:
    def of(low: float, high: float) -> Interval:
        return Interval((low + high) / 2, low, high, 5)

    assert claims._finer("unclear", [of(-0.6, 0.9)], 0.0, "nats") == "no difference"
    assert claims._finer("unclear", [of(-0.6, 1.1)], 0.0, "nats") == "unclear"
    assert claims._finer("unclear", [of(0.46, 0.54)], 0.5, "AUC") == "no difference"
    assert claims._finer("unclear", [of(-0.1, 0.1)], 0.0, "") == "unclear"
    assert claims._finer("fails", [of(-0.9, -0.6)], 0.0, "nats") == "fails"
    assert claims._finer("holds", [of(4, 5)], 0.0, "", about_cases=True) == "holds"
    assert claims._finer("holds", [of(4, 5), of(41, 42)], 0.0, "", about_cases=True) == "most"
    assert claims._unit("SFT (Ren & Sutherland; nats)", "A claim") == "nats"
    assert claims._unit("SFT (Ren & Sutherland; nats)", "A claim (AUC)") == "AUC"


def test_a_cell_s_p_is_that_of_its_values_and_of_the_figure_that_decides_least() -> None:
    rng = np.random.default_rng(1)
    near, far = rng.normal(0.4, 1, size=6), rng.normal(3, 1, size=6)
    expected = ttest_1samp(near, 0.1).pvalue
    intervals = [mean_interval(far), mean_interval(near)]
    assert claims._p(intervals, 0.1) == pytest.approx(expected)
    assert claims._p([*intervals, Interval(1.0, math.nan, math.nan, 1)], 0.1) is None
    cells = [c for group in claims.claims().values() for row in group.values() for c in row]
    chances = [c.p for c in cells if c.p is not None]
    shares = dict(zip(chances, false_discovery_control(chances), strict=True))
    assert all(c.q == pytest.approx(shares[c.p]) for c in cells if c.p is not None)


def test_no_claim_stands_twice_in_a_group() -> None:
    with pytest.raises(ValueError, match="'Up' stands twice in a group"):
        claims.read_claims("Group:\n  Up: a > 0\n  Up: b > 0\n")


def test_no_table_is_due_to_be_measured_again() -> None:
    stale = {name for name, table in claims.tables().items() if claims.stale(table)}
    assert not stale
    raised = {"stages": {"a": {"stage": "sft", "version": 1}, "b": {"key": "of a log"}}}
    assert claims.stale(raised) == ["a"]


def test_runs_of_one_seed_each_make_one_table_over_seeds() -> None:
    estimates = {"up": {"mean": 1.0, "low": 0.0, "high": 2.0, "n": 72}, "once": {"mean": 9.0}}
    one = {
        "date": "2026-11-27",
        "stages": {"sft": {"stage": "sft"}},
        "verdicts": {"sft/up": "appears", "sft/down": "does not"},
        "estimates": estimates,
        "numbers": {"auc": 0.7, "auc_low": 0.6},
    }
    two = one | {
        "verdicts": {"sft/up": "appears", "sft/down": "appears"},
        "estimates": {"up": {"mean": 3.0}, "once": {"mean": None}},
        "numbers": {"auc": 0.9, "auc_low": 0.8},
    }
    table = seeds.over_seeds("both", [0, 1], [one, two])
    assert table["seeds"] == [0, 1] and list(table["stages"]) == ["sft-0", "sft-1"]
    assert table["verdicts"] == {"sft/up": "appears", "sft/down": "unclear"}
    half = 12.7062  # t₀.₉₇₅ of one degree of freedom, times s/√n = 1
    expected = {"auc": [0.8, 0.0, 1.0, 2], "up": [2.0, 2 - half, 2 + half, 2]}
    known = {name: list(own.values()) for name, own in table["estimates"].items()}
    assert known == {name: pytest.approx(own, rel=1e-4) for name, own in expected.items()}


@pytest.mark.parametrize("name", pictures.FINDINGS)
def test_a_finding_s_picture_is_drawn_from_kept_tables(name: str) -> None:
    pictures.FINDINGS[name]()
    pictures.plt.close()
    assert f"pictures/{name}" in TEXTS[0] and (ROOT / "deploy/pictures" / name).exists()


def test_kept_tables_come_from_committed_code() -> None:
    files = list(RESULTS.glob("*.json"))
    assert files
    for file in files:
        table = json.loads(file.read_text())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"]) and "seeds" in table, file
        stages = table["stages"].values()
        assert all(re.fullmatch("[0-9a-f]{40}", stage["code"]) for stage in stages), file


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (
            "0.77 [0.66, 0.88] = simplicity-builtin: 2×3/cooperation/cooperation",
            AssertionError,
            "the table has",
        ),
        (
            "−0.77 = simplicity-builtin: 2×3/cooperation/cooperation",
            AssertionError,
            "the table has",
        ),
        ("13% = squeezing_builtin.yaml", AssertionError, "13%"),
        ("0.5 of nothing", AssertionError, "is no source"),
        ("0.5 = nowhere: a/b", FileNotFoundError, "nowhere"),
        ("0.5 = simplicity-builtin: a/b", KeyError, "a/b"),
    ],
)
def test_a_figure_that_its_source_does_not_say_is_found_out(
    line: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check(line)


def test_figures_are_read_from_prose_alone() -> None:
    text = (
        "A `0.5` of 1,000, or 5.5 nats [5.2,\n5.8], at 2×2, is 17% [14, 20]: pass@16, 95%.\n    0.7"
    )
    assert figures_of(text) == ["1,000", "5.5 nats [5.2, 5.8]", "17% [14, 20]"]
