"""Stage `ledger-page`: the page of a training's account."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, input_metrics, page_shown, stage_facts


def ledger_page(work: Work[PageConfig]) -> dict[str, float]:
    """Reads inputs `ledger` and `data`, the rows of its training.

    Results: `ledger.html` and `figures/`; the page goes to MLflow. Returns the ledger's metrics.
    """
    from dynolab.report.ledger.page import write_ledger_page
    from dynolab.results.ledger import read_ledger

    config = work.config
    with page_shown(work):
        ledger = read_ledger(work.input_folder("ledger"), work.input_folder("data"))
        write_ledger_page(ledger, config.name, config.settings, stage_facts(work), work.output)
    return input_metrics(work, "ledger")


LEDGER_PAGE = Stage("ledger-page", 5, ledger_page)
