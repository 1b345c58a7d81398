"""The platform as somebody meets it: real servers, a real Chromium, clicks as a person makes them.

    python -m tests.benchmarks.front_door

Needs Debian's chromium. Prints one JSON object on its last line:

- `up_s`: `dynolab up` in an empty home until it takes runs; `trial_pickup_s`: from a run's creation
  to its start by a free worker.
- `clicks_to_first_run`: from the printed link; `form_first_fields`: of a study's form down to the
  last of model, data, objective, β and steps.
- `schedule_fires`: a study file scheduled by the command runs and completes;
  `schedule_kept_after_restart`: a resumed schedule is active, and a made one there.
- `sweep_page_s`: from a scheduled sweep's start until its page has its first complete trial;
  `compare_link_selects_trials`: MLflow's comparison opens with every trial.
- `params_per_run`: the most of a run; `same_metric_names`: a study, its training and a trial share
  four.
- `readme_lines`, `readme_platform_lines` (that name a part of the platform); `howtos_checked`:
  pages whose commands `tests/flows/test_readme.py` takes as they stand.
- `console_errors`: different ones, of all pages on the way.
- `form_examples_work`: share of the values that forms name as examples with which they are taken;
  `bad_values_refused_at_entry`: of forms that no run could begin with, how many.
- `mlflow_rows_per_run`: after a pause, a kill and their resumptions; `names_while_waiting`: a run
  has its form's name when it is made.
- `constants_in_compare`: settings that all trials share and that MLflow's comparison shows.
- `alert_arrives_s`: from a run's failure until a webhook has it.
- `light_command_s`: the slowest of `path`, `schedule` and `doctor`, which only look.
- `ready_when_printed`, `summary_first`, `best_on_the_sweeps_row`: deployments, a run's artifacts
  and MLflow's list are as people look for them.
- `stumbles_left`: how many of these figures miss their bound; `bars` says which.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.deployment.deployments import deployments
from tests.benchmarks.figures import ROOT, report, run_tests
from tests.browsing import browser_page
from tests.flows.lab import SMALL, Lab, until
from tests.flows.test_parameters import BAD_FORMS
from tests.flows.test_readme import COMMANDS
from tests.platform.conftest import Platform, platform_of
from tests.platform.test_browser import Person

SHARED = {"probe/chosen/logp", "squeeze/gap", "train/margin", "train/accuracy"}
PLATFORM = re.compile(r"Prefect|MLflow|DeepSpeed|S3\b|[Ss]weep|[Ss]chedule|make up|Compose")
AT_MOST = {
    "up_s": 8,
    "trial_pickup_s": 3,
    "clicks_to_first_run": 4,
    "form_first_fields": 6,
    "sweep_page_s": 60,
    "params_per_run": 40,
    "readme_lines": 160,
    "console_errors": 0,
    "mlflow_rows_per_run": 1,
    "constants_in_compare": 0,
    "alert_arrives_s": 10,
    "light_command_s": 1.5,
}
AT_LEAST = {
    "schedule_fires": 1,
    "schedule_kept_after_restart": 1,
    "compare_link_selects_trials": 1,
    "same_metric_names": 1,
    "readme_platform_lines": 20,
    "howtos_checked": 8,
    "form_examples_work": 1,
    "bad_values_refused_at_entry": len(BAD_FORMS),
    "names_while_waiting": 1,
    "ready_when_printed": 1,
    "summary_first": 1,
    "best_on_the_sweeps_row": 1,
}
NAMES = "test_what_waits_has_the_name_that_it_will_run_under"
ONE_ROW = "test_a_run_that_is_paused_killed_and_retried_is_one_in_mlflow"
EXAMPLES = "test_the_examples_of_a_form_are_taken["
REFUSED = "test_a_form_that_no_run_could_begin_with_is_refused["
"""Tests whose ends are figures here, too."""


def texts() -> dict[str, float]:
    """What files alone tell."""
    readme = (ROOT / "README.md").read_text().splitlines()
    pages = [page.read_text() for page in (ROOT / "docs" / "how-to").glob("*.md")]
    one = deployments()["study"]
    fields = one.schema["definitions"][one.form_model.__name__]["properties"]
    order = sorted(fields, key=lambda name: fields[name]["position"])
    chosen = ("model", "data_source", "objective", "beta", "steps")
    return {
        "readme_lines": len(readme),
        "readme_platform_lines": sum(bool(PLATFORM.search(line)) for line in readme),
        "howtos_checked": sum(any(line in page for line in COMMANDS) for page in pages),
        "form_first_fields": 1 + max(map(order.index, chosen)),
    }


def schedule(lab: Lab, *arguments: str) -> dict[str, Any]:
    """What `dynolab schedule` lists, by name."""
    command = [sys.executable, "-m", "flows.cli", "schedule", *arguments, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=lab.environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return {row["name"]: row for row in json.loads(done.stdout.splitlines()[-1])["schedules"]}


def first_run(platform: Platform, page: Any) -> dict[str, float]:
    """A study started by clicks from the printed link; it is cancelled."""
    person, clicks = Person(page, platform.lab.temporary), list[str]()
    page.expose_function("clicked", lambda kind: clicks.append(kind))
    page.add_init_script("addEventListener('click', (event) => clicked(event.type), true)")
    page.goto(platform.link("Prefect"))
    person.click(page.get_by_role("link", name="a-study").first, "/deployments/deployment/")
    page.get_by_role("button", name="Run", exact=True).first.click()
    page.get_by_text("Quick run").first.click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Run|Submit")).last.click()
    until(lambda: page.wait_for_timeout(100) or person.run, 60)
    run = person.run
    cancelling = {"type": "CANCELLING", "name": "Cancelling"}
    platform.api("POST", f"flow_runs/{run}/set_state", state=cancelling, force=True)
    platform.end(run)
    return {"clicks_to_first_run": len(clicks)}


def runs_of(platform: Platform) -> list[Any]:
    """Every run that MLflow has."""
    from mlflow.tracking import MlflowClient

    token = platform.login["Authorization"].partition(" ")[2]
    address = platform.mlflow.replace("://", f"://dynolab:{token}@")
    client = MlflowClient(address)
    ids = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(ids, max_results=500))


def served(lab: Lab, platform: Platform, page: Any) -> dict[str, Any]:
    """What is done in the browser and by commands while the platform runs."""
    figures: dict[str, Any] = first_run(platform, page)
    plain = ["preference.engine={kind: plain, ranks: 1}"]
    text = SMALL.read_text()
    run = platform.start("study/a-study", study_text=text, other_settings=plain)
    until(lambda: platform.api("GET", f"flow_runs/{run}")["start_time"], 60)
    begun = platform.api("GET", f"flow_runs/{run}")
    created, start = (datetime.fromisoformat(begun[key]) for key in ("created", "start_time"))
    figures["trial_pickup_s"] = (start - created).total_seconds()
    platform.end(run)
    of_it = {"flow_run_id": {"any_": [run]}}  # asked for as the run's page does
    first, *_ = platform.api("POST", "artifacts/filter", artifacts=of_it, sort="ID_DESC")
    figures["summary_first"] = first["key"].startswith("summary-")

    file = lab.folder / "sweep_small.yaml"
    shutil.copy(SMALL, lab.folder / "small.yaml")
    swept = {"name": "small", "study": "small.yaml", "settings": plain, "metric": "train/loss"}
    tried = {"preference.objective.beta": {"values": [0.1, 0.5, 1.0]}}
    file.write_text(json.dumps(swept | {"space": tried, "direction": "minimize"}))
    began = time.monotonic()
    schedule(lab, str(file), "--cron", "* * * * *")
    began += 60 - time.time() % 60  # the clock's next minute
    report_page = lab.home / "reports" / "small.html"
    until(lambda: report_page.exists() and "1 complete" in report_page.read_text(), 600)
    figures["sweep_page_s"] = time.monotonic() - began
    until(lambda: "Completed" in schedule(lab)["small"]["last run"], 600)
    schedule(lab, "--pause", "small", "--resume", "nightly-beta")
    figures["schedule_fires"] = True

    runs = runs_of(platform)
    trials = [run for run in runs if run.data.tags.get("kind") == "trial"]
    (parent,) = {run.data.tags["mlflow.parentRunId"] for run in trials}
    note = next(run.data.tags for run in runs if run.info.run_id == parent)["mlflow.note.content"]
    page.goto(platform.link("MLflow"))
    page.goto(platform.mlflow + "/" + re.findall(r"\[Compare\]\((.+?)\)", note)[0])
    page.get_by_text(f"Comparing {len(trials)} Runs").first.wait_for()
    shown = page.inner_text("body")
    figures["compare_link_selects_trials"] = all(run.info.run_id in shown for run in trials)
    constant = trials[0].data.params.items() & trials[1].data.params.items()
    figures["constants_in_compare"] = sum(f"\n{name}" in shown for name, _ in constant)
    (sweep,) = (run for run in runs if run.info.run_id == parent)
    figures["best_on_the_sweeps_row"] = "best.trial" in sweep.data.tags and bool(sweep.data.metrics)
    kinds = ({"kind": "study"}, {"stage": "preference"}, {"kind": "trial"})
    figures["same_metric_names"] = all(
        any(
            tags.items() <= run.data.tags.items() and run.data.metrics.keys() >= SHARED
            for run in runs
        )
        for tags in kinds
    )
    figures["params_per_run"] = max(len(run.data.params) for run in runs)
    return figures


def tested() -> dict[str, Any]:
    """What tests on servers of their own find."""
    files = ("platform/test_up.py", "flows/test_registered.py", "flows/test_parameters.py")
    ends = run_tests(
        *(f"tests/{file}" for file in files), "-k", "one_in_mlflow or waits or told or form"
    )
    passed = [test["name"] for test in ends if test["end"] == "passed"]
    seconds = [test["alert_arrives_s"] for test in ends if "alert_arrives_s" in test]
    examples = [test for test in ends if test["name"].startswith(EXAMPLES)]
    return {
        "alert_arrives_s": float(seconds[0]) if seconds else None,
        "names_while_waiting": NAMES in passed,
        "mlflow_rows_per_run": 1 if ONE_ROW in passed else None,
        "form_examples_work": sum(test["name"] in passed for test in examples) / len(examples),
        "bad_values_refused_at_entry": sum(name.startswith(REFUSED) for name in passed),
    }


def light_command_s(lab: Lab) -> float:
    """Seconds of the slowest command that only looks."""
    seconds = []
    for arguments in (["schedule"], ["path", "data/"], ["doctor"]):
        began = time.monotonic()
        command = [sys.executable, "-m", "flows.cli", *arguments]
        subprocess.run(command, cwd=ROOT, env=lab.environment, capture_output=True)
        seconds.append(time.monotonic() - began)
    return max(seconds)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser_page(1400) as (page, errors):
        lab = Lab(Path(folder) / "lab")
        page.set_default_timeout(60_000)
        began = time.monotonic()
        with platform_of(lab) as platform:
            figures: dict[str, Any] = {"up_s": time.monotonic() - began}
            study = platform.api("GET", "deployments/name/study/a-study")
            figures["ready_when_printed"] = study["status"] == "READY"
            figures |= served(lab, platform, page)
            figures["light_command_s"] = light_command_s(lab)
        with platform_of(lab):
            kept = schedule(lab)
        figures["schedule_kept_after_restart"] = (
            kept["nightly-beta"]["active"] and not kept["small"]["active"]
        )
        print("\n".join(set(errors)), file=sys.stderr)
        figures["console_errors"] = len(set(errors))
        figures |= texts() | tested()
        above = [figures[name] is None or figures[name] > most for name, most in AT_MOST.items()]
        below = [figures[name] < least for name, least in AT_LEAST.items()]
        figures["stumbles_left"] = sum([*above, *below])
    report(figures, at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
