"""The stage that writes the page of the papers' findings."""

from __future__ import annotations

from dynolab.report.inputs.arms import read_pair_run
from dynolab.results.arms import EXTENDED, EXTENDED_HALF, SFT, Start
from tasks.pages import read_run
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, facts_of, page_shown
from tasks.shared.seeds import start_of


class ReproductionPageConfig(PageConfig):
    """Facts about the run that the page shows."""

    seeds: tuple[int, ...]
    arms: tuple[str, ...]


def reproduction_page(work: Work[ReproductionPageConfig]) -> dict[str, float]:
    """Reads for every seed its data, all SFTs, every preference training, and the judged answers.

    Results: `reproduction.html`, `summary.json` and `figures/`; the files go to MLflow. Returns
    the changes as means over seeds, and the number of claims by outcome.
    """
    from experiments.reproduce.page import ReproductionInputs, write_reproduction_page

    config = work.config
    with page_shown(work):
        starts: dict[str, Start] = {
            SFT: "sft",
            EXTENDED: "extended",
            EXTENDED_HALF: "extended_half",
        }
        runs = {
            (arm, seed): read_run(work, arm, seed) for seed in config.seeds for arm in config.arms
        } | {
            (name, seed): read_pair_run("", work.input_folder(start_of(start, seed)), None, None)
            for seed in config.seeds
            for name, start in starts.items()
        }
        inputs = ReproductionInputs(
            name=config.name,
            seeds=config.seeds,
            runs=runs,
            same_pairs=len({work.inputs[f"data-{seed}"].digest for seed in config.seeds}) == 1,
            settings=config.settings,
            stages=facts_of(work.inputs),
        )
        return write_reproduction_page(inputs, work.output)


REPRODUCTION_PAGE = Stage("reproduction-page", 6, reproduction_page)
