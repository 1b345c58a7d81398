"""The sbatch file, read as text, and by Slurm where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "deploy" / "slurm" / "dynolab.sbatch"
SRUN = """#!/bin/sh
echo "$@"
"""


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_first_node_runs_the_command_and_torchrun_the_others(
    nodes: int, tmp_path: Path
) -> None:
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho node1; echo node2\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_ON_NODE": "8",
        "DYNOLAB_PYTHON": "python",
    }
    job = subprocess.run(
        ["bash", str(FILE), "study", "--plan"], env=environment, capture_output=True, text=True
    )
    assert job.returncode == 0, job.stderr
    assert "--relative=0 --nodes=1 --ntasks=1 python -m dynolab study --plan" in job.stdout
    assert ("--relative=1 --nodes=2 --ntasks=2" in job.stdout) is (nodes == 3)
    assert ("tasks.runtime.launch.rank_entry" in job.stdout) is (nodes == 3)


def test_the_job_is_requeued_and_has_time_to_save_its_state() -> None:
    text = FILE.read_text()
    assert "#SBATCH --requeue" in text and "#SBATCH --open-mode=append" in text
    signal = int(text.partition("--signal=TERM@")[2].split()[0])
    grace = int(text.partition("DYNOLAB_GRACE_SECONDS:-")[2].partition("}")[0])
    assert grace < signal


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm is not installed")
def test_slurm_takes_the_file() -> None:
    subprocess.run(["sbatch", "--test-only", "--nodes=2", str(FILE), "study"], check=True)
