from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from dynolab.figures.inputs import ReportInputs, StageFacts, StudyFacts, TokenMap, read_inputs
from dynolab.figures.learning_paths import learning_paths
from dynolab.figures.report import write_report
from dynolab.figures.style import DARK, number, plotly_text, token_text
from dynolab.figures.svg import paths_svg
from tests.figures.synthetic import study, token_map

CANARY = "<script>window.canary=1</script><img src=x onerror=canary()>"
LOADS = {"src", "srcset", "data", "poster", "action", "background"}


class Parsed(HTMLParser):
    """Every element of a page with its attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside != "style":
            self.words.append(data)

    @property
    def policy(self) -> str:
        return next(
            a["content"] or ""
            for tag, a in self.elements
            if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        )


def hostile() -> ReportInputs:
    """A study in which every text that models or data wrote tries to be markup."""
    inputs = study()
    facts = StudyFacts(
        name=CANARY, config_text=f"name: {CANARY}\n</pre></script>{CANARY}",
        stages=(StageFacts(stage=CANARY, key=CANARY, cached=False, seconds=1.0,
                           mlflow_url="javascript:canary()"),),
    )  # fmt: skip
    tokens = ["</script>", CANARY, "<b>bold</b>", "%{x}"]
    pushes = TokenMap(
        step=1, observed_id=CANARY, updating_id=CANARY, learning_rate=0.1, observed_tokens=tokens,
        chosen_tokens=tokens, rejected_tokens=[CANARY], force=[[0.1, -0.2, 0.3, 0.0, -0.1]] * 4,
    )  # fmt: skip

    def renamed(row):
        return row.model_copy(
            update={
                "pair_id": row.pair_id + CANARY,
                "kind": CANARY if row.kind == "irr_hum" else row.kind,
            }
        )

    return replace(
        inputs, facts=facts, token_map=pushes,
        sft_probes=tuple(map(renamed, inputs.sft_probes)),
        dpo_probes=tuple(map(renamed, inputs.dpo_probes)),
        forces=tuple(map(renamed, inputs.forces)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    write_report(study(), place)
    return place


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    write_report(hostile(), place)
    return place


def pages(folder: Path) -> list[Path]:
    return [folder / "report.html", *sorted((folder / "figures").glob("*.html"))]


def test_nothing_that_data_wrote_becomes_markup(folder: Path, hostile_folder: Path) -> None:
    plain = {page.name: Parsed(page.read_text()) for page in pages(folder)}
    for page in pages(hostile_folder):
        found, usual = Parsed(page.read_text()), plain[page.name]
        allowed = {tag for tag, _ in usual.elements}
        assert {tag for tag, _ in found.elements} <= allowed
        assert [a for a, _ in found.scripts] == [a for a, _ in usual.scripts]
        assert not any(name.startswith("on") for _, a in found.elements for name in a)


def test_hostile_text_is_shown_as_it_is(hostile_folder: Path) -> None:
    words = "".join(Parsed((hostile_folder / "report.html").read_text()).words)
    assert words.count(CANARY) >= 4


def test_plotly_is_given_escaped_text(hostile_folder: Path) -> None:
    """Plotly turns `<b>` and `<a>` in labels into markup; entities it shows as characters."""
    for file in (hostile_folder / "figures").glob("*.json"):
        content = file.read_text().replace("<extra></extra>", "").replace("<br>", "")
        content = re.sub(r"</?b>(?!bold)", "", content)
        assert "<script" not in content, file.name
        assert "<img" not in content, file.name
        assert "<b" not in content, file.name


def test_only_the_pages_own_scripts_may_run(hostile_folder: Path) -> None:
    found = Parsed((hostile_folder / "report.html").read_text())
    code = [text for a, text in found.scripts if a.get("type") != "application/json"]
    assert len(code) == 2
    hashes = [base64.b64encode(hashlib.sha256(c.encode()).digest()).decode() for c in code]
    script_src = re.search(r"script-src ([^;]*);", found.policy)
    assert script_src and script_src[1].split() == [f"'sha256-{h}'" for h in hashes]
    assert "default-src 'none'" in found.policy


def test_pages_load_nothing_from_elsewhere(hostile_folder: Path) -> None:
    for page in pages(hostile_folder):
        found = Parsed(page.read_text())
        for tag, attributes in found.elements:
            loaded = [attributes[name] for name in LOADS & set(attributes)]
            loaded += [attributes.get("href")] if tag == "link" else []
            assert all(v in ("plotly.min.js", "data:,") for v in loaded), (page.name, tag)
            assert "url(" not in (attributes.get("style") or "")
        assert "http" not in found.policy
        style = page.read_text().split("<style>")[1].split("</style>")[0]
        assert "@import" not in style
        assert "url(" not in style
    assert (hostile_folder / "figures" / "plotly.min.js").exists()


def test_links_lead_to_web_addresses_only(folder: Path, hostile_folder: Path) -> None:
    def links(place: Path) -> list[str | None]:
        found = Parsed((place / "report.html").read_text())
        return [a.get("href") for tag, a in found.elements if tag == "a"]

    assert links(hostile_folder) == []
    assert set(links(folder)) == {"http://127.0.0.1:5000/#/experiments/1/runs/ab12"}


def test_figures_hold_valid_json_and_known_colours(folder: Path) -> None:
    """A colour without a dark partner would stay light on a dark page."""
    assert len(set(DARK.values())) == len(DARK)
    for file in (folder / "figures").glob("*.json"):
        json.loads(file.read_text())
        assert set(re.findall(r"#[0-9a-f]{6}", file.read_text())) <= set(DARK), file.name
    found = Parsed((folder / "report.html").read_text())
    blocks = [text for a, text in found.scripts if a.get("type") == "application/json"]
    assert len(blocks) == 8
    assert all(json.loads(block) for block in blocks)


def test_summary_is_flat_finite_json(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert all(isinstance(value, float) for value in summary["metrics"].values())
    assert summary["metrics"]["claims/appears"] == 12
    assert summary["metrics"]["dpo/gap/change"] > 4
    assert 0.9 < summary["metrics"]["force/dpo/r2"] <= 1
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"appears"}


def test_messages_follow_the_data(folder: Path, tmp_path: Path) -> None:
    swapped = study()
    swapped = replace(swapped, sft_probes=swapped.dpo_probes, dpo_probes=swapped.sft_probes)
    write_report(swapped, tmp_path)
    assert "SFT narrows the gap" in (folder / "report.html").read_text()
    assert "SFT widens the gap" in (tmp_path / "report.html").read_text()


def test_a_study_without_measurements_still_has_a_page(tmp_path: Path) -> None:
    summary = write_report(ReportInputs(facts=StudyFacts(name="empty")), tmp_path)
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"not measured"}
    assert "not measured" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "paths.svg").exists()


@pytest.mark.parametrize("missing", ["sft_probes", "dpo_probes", "forces", "replay", "token_map"])
def test_a_missing_part_leaves_the_others(missing: str, tmp_path: Path) -> None:
    empty = None if missing == "token_map" else ()
    summary = write_report(replace(study(), **{missing: empty}), tmp_path)
    assert summary["metrics"]
    assert (tmp_path / "report.html").exists()


def test_a_map_without_a_rejected_side(tmp_path: Path) -> None:
    full = token_map()
    sft = full.model_copy(
        update={"stage": "sft", "rejected_tokens": [], "force": [r[:8] for r in full.force]}
    )
    write_report(replace(study(), token_map=sft), tmp_path)
    assert "SFT step 40" in (tmp_path / "report.html").read_text()


def test_reads_what_the_stages_wrote(tmp_path: Path) -> None:
    inputs = study()
    for name in ("sft", "dpo", "forces-sft", "forces-dpo"):
        (tmp_path / name).mkdir()
    for stage in ("sft", "dpo"):
        for name in ("probes", "metrics"):
            rows = getattr(inputs, f"{stage}_{name}")
            lines = [json.dumps(row.model_dump() | {"time": 1.0}) for row in rows]
            (tmp_path / stage / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        place = tmp_path / f"forces-{stage}"
        mine = [row for row in inputs.forces if row.stage == stage]
        (place / "forces.jsonl").write_text("".join(row.model_dump_json() + "\n" for row in mine))
        replay = [row.model_dump() for row in inputs.replay if row.stage == stage]
        (place / "replay.json").write_text(json.dumps(replay))
    assert inputs.token_map is not None
    (tmp_path / "forces-dpo" / "token_map.json").write_text(inputs.token_map.model_dump_json())
    read = read_inputs(
        inputs.facts, sft=tmp_path / "sft", dpo=tmp_path / "dpo",
        forces=[tmp_path / "forces-sft", tmp_path / "forces-dpo"],
    )  # fmt: skip
    assert read == inputs


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "probes.jsonl").write_text('\n{"step": "many"}\n')
    with pytest.raises(ConfigError, match=r"probes\.jsonl line 2.*step"):
        read_inputs(StudyFacts(name="x"), sft=tmp_path)
    (tmp_path / "token_map.json").write_text(
        token_map().model_copy(update={"force": [[1.0]]}).model_dump_json()
    )
    with pytest.raises(ConfigError, match=r"token_map\.force"):
        read_inputs(StudyFacts(name="x"), forces=[tmp_path])


def test_svg_is_well_formed_and_still() -> None:
    inputs = study()
    paths = {("sft", "train"): learning_paths(inputs.sft_probes),
             ("dpo", "train"): learning_paths(inputs.dpo_probes)}  # fmt: skip
    drawing = paths_svg(paths)  # type: ignore[arg-type]
    assert drawing is not None
    root = ElementTree.fromstring(drawing)
    tags = [element.tag.split("}")[1] for element in root.iter()]
    assert tags.count("polyline") == 6
    assert "script" not in tags
    assert not re.search(r"(href|url\()", drawing)
    assert paths_svg({}) is None


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [(4.1e-7, False, "4.1·10⁻⁷"), (-0.0589, True, "−0.0589"), (float("nan"), True, "–"),
     (123456.0, False, "123456"), (None, False, "–"), (0.9, True, "+0.900")],
)  # fmt: skip
def test_numbers(value: float | None, sign: bool, text: str) -> None:
    assert number(value, sign=sign) == text


def test_tokens_show_their_spaces() -> None:
    assert token_text("Ġthe") == "·the"
    assert token_text(" a\n") == "·a⏎"
    assert token_text("\x00") == "�"
    assert plotly_text("a<b>&") == "a&lt;b&gt;&amp;"
    assert len(token_text("x" * 50)) == 12
