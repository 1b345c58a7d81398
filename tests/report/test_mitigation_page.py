"""The page of remedies: it follows the data, tells of what diverged, and obeys no text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from dynolab.comparisons.matched import matched_figures
from dynolab.data.rows import read_value
from dynolab.report.inputs.arms import arm_table_of
from dynolab.report.inputs.files import StageFacts
from dynolab.report.mitigation.figure import remedy_figure
from dynolab.report.mitigation.followed import Followed, followed_section
from dynolab.report.mitigation.listed import mitigation_list
from dynolab.report.mitigation.matched import matched_figure
from dynolab.report.mitigation.opening import answer, more
from dynolab.report.mitigation.page import write_mitigation_page
from dynolab.report.mitigation.ranking import Gains
from dynolab.report.text import true_minus, with_interval
from dynolab.results.arms import ComparedArms, RunFigures
from dynolab.statistics import mean_interval
from tests.report.pairs import ARMS, mitigation
from tests.report.parsed import CANARY, check_figure, obeys_no_text, words_of


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_the_figure_says_what_each_arm_does_to_the_gap(seeds: tuple[int, ...]) -> None:
    compared = mitigation(seeds=seeds)
    figure = check_figure(remedy_figure(compared, arm_table_of(compared)))
    if len(seeds) > 1:
        less, more = figure.message.split(" Per nat")[0].split("It grows more under")
        assert "extended" in less and "dose" in less and "simpo" in more


def test_differences_are_paired_by_seed() -> None:
    compared = mitigation()
    table = arm_table_of(compared)
    each = [
        dose.figures["train/gap"] - dpo.figures["train/gap"]
        for dose, dpo in zip(compared.runs["dose"], compared.runs["dpo"], strict=True)
    ]
    assert table.difference("dose", "dpo", "train/gap") == mean_interval(np.array(each))


def test_arms_are_compared_where_they_have_learned_as_much(tmp_path: Path) -> None:
    compared = mitigation()
    write_mitigation_page(compared, tmp_path)
    matched = json.loads((tmp_path / "summary.json").read_text())["matched"]
    assert {name.split("/")[0] for name in matched} == set(compared.others)
    for arm in compared.others:
        for run, base in zip(compared.runs[arm], compared.runs["dpo"], strict=True):
            ends = [run.path[-1].margin, base.path[-1].margin]
            assert min(ends) == pytest.approx(
                matched_figures(run.path, base.path)["matched/margin"]
            )
    assert matched["dose/gap"]["high"] < 0 < matched["simpo/gap"]["low"]
    figure = check_figure(matched_figure(compared))
    assert "narrower under" in figure.message
    assert "dose" in figure.message.split("wider")[0]
    assert "At the same margin" in words_of(tmp_path / "mitigation.html", " ")


def test_the_answer_has_a_line_for_every_arm_that_learned_the_best_first() -> None:
    compared = mitigation()
    figures = arm_table_of(compared)
    best, ways, head, *said = answer(compared, figures)
    assert best == (
        "The chosen answers hold up best under designed (pushes on rejected answers cut until they "
        "lower no other chosen answer)."
    )
    assert ways == (
        "It is clearly better than dpo in as many ways as any other arm over 3 seeds: in the mean "
        "(in training, held out, at the same margin) and in the share that fell (in training, held "
        "out)."
    )
    assert "in brackets its difference from dpo" in head
    lines = [own for own in said if own.startswith("· ")]
    assert [own.split()[1].rstrip(":") for own in lines[:2]] == ["dpo", "designed"]
    assert {own.split()[1].rstrip(":") for own in lines} == compared.arms.keys()
    mean, change = (
        figures.mean("designed", "train/chosen"),
        figures.difference("designed", "dpo", "heldout/chosen"),
    )
    assert lines[1].startswith(f"· designed: {true_minus(f'{mean.mean:+.2g}')} in training (+")
    assert f" held out ({with_interval(change)}); " in lines[1]
    assert re.search(r"; \d+% and \d+% fell$", lines[1])
    assert "(" not in lines[0], "the baseline differs from nothing"
    (margin,) = (own for own in said if own.startswith("Under designed the margin, "))
    assert "by +17 in training in place of +15 and by +14 held out in place of +12; at" in margin
    assert "; at the same margin, chosen answers in training differ (+" in margin
    (worse,) = (own for own in said if own.startswith("Clearly worse: "))
    assert worse.startswith("Clearly worse: simpo (in the mean (in training, held out")
    baseline, *_ = more(compared, figures)
    assert baseline.startswith("Under dpo the chosen answers of training pairs changed by")
    assert "of held-out pairs by" in baseline and "nats, at a margin of" in baseline
    single = mitigation(seeds=(4,))
    assert "decides nothing" in answer(single, arm_table_of(single))[0]


def test_an_arm_that_is_better_in_more_ways_and_worse_elsewhere_is_not_passed_over() -> None:
    """The best is then not said to be better in more ways than any other."""
    compared = mitigation()
    gains = Gains(compared, arm_table_of(compared), ["designed", "simpo"])
    assert gains.how_many_ways("designed") == "5 ways, and no other arm anywhere,"
    mixed = {place: change.times(-1) for place, change in gains.of("simpo").items()}
    gains = Gains(compared, arm_table_of(compared), ["designed", "simpo"])
    gains._of["simpo"] = mixed
    gains._of["designed"] = {"train": gains.of("designed")["train"]}
    assert gains.how_many_ways("designed") == "1 way"


def test_the_answer_ends_with_the_settings_of_the_arm_that_holds_held_out_answers_up_best() -> None:
    compared = mitigation()
    figures = arm_table_of(compared)
    gains = {arm: figures.difference(arm, "dpo", "heldout/chosen") for arm in compared.others}
    best = max((arm for arm in gains if gains[arm].low > 0), key=lambda arm: gains[arm].mean)
    last = answer(compared, figures)[-1]
    assert last.startswith(f"To train as {best} does, under a name of its own")
    assert "--set 'preference.objective.designed_dose={" in last
    assert f"--set name=trained-as-{best} --set" in last
    longer = answer(compared.model_copy(update={"steps": 88}), figures)[-1]
    assert longer.endswith(" --set preference.steps=88")


def test_the_answers_that_fell_most_are_followed_over_the_seeds_that_did_not_choose_them(
    tmp_path: Path,
) -> None:
    compared = mitigation()
    (sentence,) = (
        said for said in more(compared, arm_table_of(compared)) if said.startswith("Of the 10")
    )
    assert "that fell most under dpo with seed 0, 10 end higher under designed" in sentence
    first = max(
        compared.followed,
        key=lambda own: sum(own.changes["designed"][1:]) - sum(own.changes["dpo"][1:]),
    )
    assert f"with seeds 1 and 2 ({first.pair_id} +" in sentence
    write_mitigation_page(compared, tmp_path)
    words = words_of(tmp_path / "mitigation.html", " ")
    section = words.split("What became of single answers")[-1]
    assert all(own.pair_id in section for own in compared.followed)
    assert "So seed 0, by which they were chosen, has only the first column" in section


def test_answers_that_no_other_seed_watches_are_followed_with_their_own_alone() -> None:
    compared = mitigation(own_rows=True)
    followed = followed_section(compared)
    assert followed is not None and "with seed 0." in followed.message
    assert "No other seed watches these answers" in followed.note
    assert followed_section(compared.model_copy(update={"followed": ()})) is None


def test_named_answers_are_followed_and_those_that_are_not_watched_told() -> None:
    compared = mitigation(follow=("q003", "q004", "gone"))
    said = more(compared, arm_table_of(compared))
    assert any(
        own.startswith("Of the 2 answers that the comparison’s file names (follow)") for own in said
    )
    followed = followed_section(compared)
    assert followed is not None and "Not watched: gone." in followed.note


def test_a_preference_that_is_learned_in_training_alone_is_told() -> None:
    compared = mitigation()
    turned = tuple(
        run.model_copy(update={"figures": run.figures | {"heldout/margin": margin}})
        for run, margin in zip(compared.runs["dpo"], (-1.0, -1.1, -0.9), strict=True)
    )
    compared = compared.model_copy(update={"runs": compared.runs | {"dpo": turned}})
    first = more(compared, arm_table_of(compared))[0]
    assert first.endswith("there rejected answers gained on the chosen ones.")


def test_an_answer_that_makes_most_of_a_mean_is_named() -> None:
    compared = mitigation()
    others, (last,) = compared.followed[:-1], compared.followed[-1:]
    rose = {**last.changes, "dose": tuple(90.0 for _ in compared.seeds)}
    compared = compared.model_copy(
        update={"followed": (*others, last.model_copy(update={"changes": rose}))}
    )
    words = Followed(compared).mean_sentence("dose")
    without = fmean(Followed(compared).change(own, "dose") for own in others)
    assert f"({true_minus(f'{without:+.2f}')} in place of" in words
    assert words.endswith(f" without {last.pair_id}).")


def test_arms_say_how_many_pairs_they_left_out() -> None:
    compared = mitigation()
    named = compared.arms["dpo"].model_copy(update={"filtered_by": "id", "named": ("a",)})
    runs = [run.model_copy(update={"left_out": ("a", "b")}) for run in compared.runs["simpo"]]
    compared = compared.model_copy(
        update={
            "arms": compared.arms | {"simpo": named},
            "runs": compared.runs | {"simpo": tuple(runs)},
        }
    )
    (said,) = (own for own in answer(compared, arm_table_of(compared)) if "left out" in own)
    assert said.startswith("· simpo (2 pairs left out, the named ones): −")
    (mean,) = (own for own in more(compared, arm_table_of(compared)) if "on average" in own)
    assert mean.startswith("Under simpo the followed answers changed by ")


def test_trainings_that_learned_little_are_told_how_many_steps_a_margin_takes() -> None:
    compared = mitigation().model_copy(update={"steps": 20})
    short = {
        arm: tuple(
            run.model_copy(update={"path": (), "figures": run.figures | {"train/margin": margin}})
            for run in runs
        )
        for (arm, runs), margin in zip(
            compared.runs.items(), [0.1, *[0.12] * len(compared.others)], strict=True
        )
    }
    compared = compared.model_copy(update={"runs": short})
    (said,) = (own for own in answer(compared, arm_table_of(compared)) if "Train longer" in own)
    assert said.startswith("None of them shares a margin of 0.25 nats or more with dpo")
    assert said.endswith("(training.steps: about 50 at this pace).")


def test_few_pairs_decide_nothing(tmp_path: Path) -> None:
    compared = of_few_heldout_pairs(mitigation(), 6)
    said = answer(compared, arm_table_of(compared))
    places = [own for own in said if own.startswith("· ")]
    assert places and all("held out (" not in place for place in places)
    assert any(own.startswith("Over 6 held-out pairs nothing is decided") for own in said)
    write_mitigation_page(compared, tmp_path)
    assert outcomes_in(tmp_path)["dose/right_heldout"] == "unclear"
    assert outcomes_in(tmp_path)["dose/right"] == "appears"


def of_few_heldout_pairs(compared: ComparedArms, pairs: int) -> ComparedArms:
    def few(run: RunFigures) -> RunFigures:
        heldout = {name: pairs for name in run.figures if name.startswith("heldout/")}
        return run.model_copy(update={"counts": run.counts | heldout})

    runs = {arm: tuple(map(few, own)) for arm, own in compared.runs.items()}
    return compared.model_copy(update={"runs": runs})


def test_where_no_arm_is_clearly_better_all_have_their_figures_and_more_seeds_are_named() -> None:
    compared = of_few_heldout_pairs(mitigation(), 6)
    shifts = dict(zip(compared.seeds, (0.5, -0.5, 0.1), strict=True))
    base = compared.runs["dpo"]
    same = tuple(
        run.model_copy(
            update={
                "path": (),
                "figures": run.figures
                | {"train/chosen": run.figures["train/chosen"] + shifts[seed]},
            }
        )
        for seed, run in zip(compared.seeds, base, strict=True)
    )
    arms = {name: compared.arms[name] for name in ("dpo", "dose")}
    two = compared.model_copy(
        update={"arms": arms, "runs": {"dpo": base, "dose": same}, "followed": ()}
    )
    none, _, before, dose, *_, last = answer(two, arm_table_of(two))
    assert none == "No arm holds the chosen answers up clearly better than dpo over 3 seeds."
    assert before.startswith("· dpo: −") and dose.startswith("· dose (")
    assert " in training (+0.0 [" in dose
    assert "--set 'seeds=[0, 1, 2, 3, 4, 5]'" in last


def test_one_seed_names_the_option_that_runs_more() -> None:
    single = mitigation(seeds=(4,))
    said = answer(single, arm_table_of(single))
    assert any("--set 'seeds=[4, 5, 6]'; the trainings so far are kept" in own for own in said)


def test_the_pairs_that_a_filter_left_out_are_named() -> None:
    compared = mitigation()
    left_out = [("a", "b"), ("b", "c"), ("b", "d")]
    runs = [
        run.model_copy(update={"left_out": pairs})
        for run, pairs in zip(compared.runs["dose"], left_out, strict=True)
    ]
    compared = compared.model_copy(update={"runs": compared.runs | {"dose": runs}})
    assert "(2 pairs; the same with every seed: b)" in str(mitigation_list(compared).markup)


def test_pairs_that_an_audit_and_an_account_leave_out_are_told_apart() -> None:
    compared = mitigation()
    base = compared.arms["dpo"]
    arms = compared.arms | {
        "own": base.model_copy(update={"filtered_by": "on_all", "dropped": 0.3}),
        "dose": base.model_copy(update={"filtered_by": "id", "named": ("a",)}),
    }
    both = compared.model_copy(update={"arms": arms})
    assert "own and dose leave out different pairs" in mitigation_list(both).note
    assert "different pairs" not in mitigation_list(compared).note


def test_a_warm_up_is_said_with_its_steps_and_can_be_taken_over() -> None:
    compared = mitigation()
    arms = compared.arms | {"dose": compared.arms["dpo"].model_copy(update={"warmup_steps": 20})}
    warmed = compared.model_copy(update={"arms": arms})
    listed = str(mitigation_list(warmed).markup)
    assert "smaller first steps" in listed and "warm-up steps = 20" in listed
    best = warmed.model_copy(
        update={"runs": warmed.runs | {"dose": warmed.runs["designed"]}},
    )
    for arm in ("designed", "own", "alarm", "extended", "simpo"):
        best = best.model_copy(update={"arms": {k: v for k, v in best.arms.items() if k != arm}})
    assert "--set preference.warmup_steps=20" in answer(best, arm_table_of(best))[-1]


def test_an_arm_without_a_followed_pair_is_told() -> None:
    compared = mitigation()
    name = compared.followed[0].pair_id
    runs = tuple(run.model_copy(update={"left_out": (name,)}) for run in compared.runs["dose"])
    compared = compared.model_copy(update={"runs": compared.runs | {"dose": runs}})
    followed = followed_section(compared)
    assert followed is not None and f"dose does not train on {name}." in followed.note


def test_an_arm_that_is_better_in_the_shares_that_fell_alone_is_shown(tmp_path: Path) -> None:
    compared = mitigation()
    same = [
        run.model_copy(update={"figures": run.figures | {"train/fell": 0.1 + 0.01 * seed}})
        for seed, run in enumerate(compared.runs["dpo"])
    ]
    more = [
        run.model_copy(update={"figures": run.figures | {"train/fell": 0.9 + 0.01 * seed}})
        for seed, run in enumerate(compared.runs["dpo"])
    ]
    arms = {name: compared.arms[name] for name in ("dpo", "dose")}
    runs = {"dpo": tuple(more), "dose": tuple(same)}
    two = compared.model_copy(update={"arms": arms, "runs": runs, "followed": ()})
    write_mitigation_page(two, tmp_path)
    best = answer(two, arm_table_of(two))[0]
    assert best.endswith("best under dose (pushes on rejected answers times 0.3).")


def test_an_arm_that_did_not_learn_the_preference_gets_no_praise() -> None:
    compared = mitigation()
    runs = [
        run.model_copy(update={"figures": run.figures | {"train/margin": -2.0}})
        for run in compared.runs["dose"]
    ]
    compared = compared.model_copy(update={"runs": compared.runs | {"dose": runs}})
    said = [
        sentence for part in (answer, more) for sentence in part(compared, arm_table_of(compared))
    ]
    (only,) = (sentence for sentence in said if re.search(r"\bdose\b", sentence))
    assert only.startswith("dose") and "did not learn the preference" in only


def test_a_run_that_diverged_is_told_and_its_arm_stays(tmp_path: Path) -> None:
    metrics = write_mitigation_page(mitigation(lost="simpo"), tmp_path)
    assert (metrics["simpo/diverged"], metrics["dpo/diverged"]) == (1.0, 0.0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ends"]["simpo"] == "seed 0 diverged after 31 steps"
    assert summary["means"]["simpo/train/gap"]["n"] == 2
    assert summary["differences"]["simpo/train/gap"]["n"] == 2
    words = words_of(tmp_path / "mitigation.html", " ")
    for said in (
        "seed 0 diverged after 31 steps",
        "1 of 21 runs diverged",
        "3 of 3 ended by the alarm at step 40",
    ):
        assert said in words


def outcomes_in(folder: Path) -> dict[str, str]:
    """What became of every hope, by its id."""
    summary = json.loads((folder / "summary.json").read_text())
    return {verdict["id"]: verdict["outcome"] for verdict in summary["verdicts"]}


def test_an_arm_of_which_nothing_is_left_is_still_in_the_table(tmp_path: Path) -> None:
    metrics = write_mitigation_page(mitigation(seeds=(0,), lost="simpo"), tmp_path)
    assert "simpo/train/gap" not in metrics
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["arms"] == list(ARMS)
    assert outcomes_in(tmp_path)["simpo/gap"] == "not measured"


def test_hopes_are_judged_against_the_baseline(tmp_path: Path) -> None:
    write_mitigation_page(mitigation(), tmp_path)
    outcomes = outcomes_in(tmp_path)
    assert len(outcomes) == 6 * (len(ARMS) - 1)
    assert outcomes["extended/gap"] == outcomes["dose/chosen"] == outcomes["dose/won"] == "appears"
    assert outcomes["dose/gap_by_margin"] == "appears"
    assert outcomes["dose/right"] == "appears" and outcomes["dose/right_heldout"] == "does not"
    assert outcomes["simpo/gap"] == outcomes["simpo/chosen"] == "does not"


def test_text_of_others_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    stages = [StageFacts(stage=CANARY, key="0" * 64)]
    write_mitigation_page(mitigation(CANARY), tmp_path, settings=CANARY, stages=stages)
    assert CANARY not in (tmp_path / "mitigation.html").read_text()
    assert CANARY in " ".join(obeys_no_text(tmp_path, "mitigation.html").words)


def test_what_the_page_is_made_from_can_be_read_again(tmp_path: Path) -> None:
    compared = mitigation(lost="simpo")
    write_mitigation_page(compared, tmp_path)
    assert read_value(tmp_path / "comparison.json", ComparedArms) == compared
