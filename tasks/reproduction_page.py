"""Stage `reproduction-page`: the page on which of the papers' findings appear."""

from __future__ import annotations

from dynolab.results.arms import Start
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, page_shown, stage_facts
from tasks.shared.pair_inputs import read_run, read_start


class ReproductionPageConfig(PageConfig):
    """Facts about the run that the page shows."""

    seeds: tuple[int, ...]
    arms: tuple[str, ...]


def reproduction_page(work: Work[ReproductionPageConfig]) -> dict[str, float]:
    """Reads for every seed all SFTs, every preference training, and the judged answers.

    Results: `reproduction.html`, `summary.json` and `figures/`; the files go to MLflow. Returns
    the changes as means over seeds, and the number of claims by outcome.
    """
    from dynolab.claims.reproduction import EXTENDED, EXTENDED_HALF, SFT
    from dynolab.report.comparison.reproduction import write_reproduction_page
    from dynolab.report.inputs.arms import ReproductionInputs

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
            (name, seed): read_start(work, start, seed)
            for seed in config.seeds
            for name, start in starts.items()
        }
        inputs = ReproductionInputs(
            name=config.name,
            seeds=config.seeds,
            runs=runs,
            settings=config.settings,
            stages=stage_facts(work),
        )
        return write_reproduction_page(inputs, work.output)


REPRODUCTION_PAGE = Stage("reproduction-page", 6, reproduction_page)
