"""Writes the locks anew, with the hashes of all files that PyPI has of a release.

    python locks/renew.py [options of `uv pip compile`, such as --upgrade-package prefect]

It needs uv on the path (`.venv/bin`). A package stands in one file, the first of these that needs
it, so that an image installs what it uses and nothing else:

- `installer.lock`: uv, which installs the others in seconds.
- `build.lock`: what builds the packages that have no wheel, in place of pip's own choice.
- `torch-cpu.lock`: torch's build for CPUs, which PyPI does not have.
- `torch.lock`: torch as PyPI has it, and what it needs on GPUs.
- `servers.lock`: Prefect's and MLflow's servers, with the drivers of their databases.
- `worker.lock`: what studies need beside these.
- `tools.lock`: what tests, lint and the manual need beside these.

Versions stay as they are, unless an option upgrades them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SERVERS = ["asyncpg", "boto3", "mlflow", "prefect", "prefect-redis", "psycopg[binary]", "uvicorn"]
FOR_CPU = {
    "2.13.0": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
}
"""Version of torch → sha256 of torch-VERSION+cpu-cp311-cp311-manylinux_2_28_x86_64.whl."""

HEAD = "# Written by locks/renew.py: {what}. For Python 3.11; installed by --require-hashes.\n"


def compiled(*wanted: str) -> dict[str, str]:
    """Package → its lines in a lock, for requirements and what they need on Linux."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text(
            "".join(
                f"{line.removesuffix(chr(92)).strip()}\n"
                for lock in sorted(HERE.glob("*.lock"))
                for line in lock.read_text().splitlines()
                if re.match(r"[a-z0-9]", line) and "+cpu" not in line
            )
        )
        out, given = Path(folder, "out.txt"), Path(folder, "given.in")
        given.write_text("\n".join(wanted) + "\n")
        command = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate"]
        command += ["--no-header", "--python-version", "3.11.0", "--constraint", str(pins)]
        command += ["--python-platform", "x86_64-manylinux_2_28", "--output-file", str(out)]
        subprocess.run(
            [*command, *sys.argv[1:], str(given)],
            check=True,
            cwd=HERE.parent,
            stdout=subprocess.DEVNULL,
        )
        text = re.sub(r"^\..*\n", "", out.read_text(), flags=re.MULTILINE)  # the project itself
        blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
        return {re.split(r"[=\[ ]", block)[0]: block for block in blocks if block}


def main() -> None:
    """Compile each set of requirements and write what no earlier file has."""
    torch = {
        name: block.replace(" \\", ' ; sys_platform == "linux" \\', 1) if name != "torch" else block
        for name, block in compiled("torch", "nvidia-ml-py").items()
        if re.match("torch|nvidia|cuda|triton", name)
    }
    version = torch["torch"].split()[0].removeprefix("torch==")
    cpu = f"torch=={version}+cpu \\\n    --hash=sha256:{FOR_CPU[version]}\n"
    parts = {
        "installer": ("what installs the others", compiled("uv")),
        "build": ("what builds packages without a wheel", compiled("setuptools")),
        "torch-cpu": ("torch for CPUs, of torch's own index", {"torch-cpu": cpu}),
        "torch": ("torch and what it needs on GPUs", torch),
        "servers": ("Prefect's and MLflow's servers", compiled(*SERVERS)),
        "worker": ("what studies need beside the servers", compiled(".[full]")),
        "tools": ("what tests, lint and the manual need beside", compiled(".[test,docs]")),
    }
    written = set[str]()
    for name, (what, blocks) in parts.items():
        new = {package: block for package, block in blocks.items() if package not in written}
        lock = HEAD.format(what=what) + "".join(new[package] for package in sorted(new))
        (HERE / f"{name}.lock").write_text(lock)
        written |= new.keys()


if __name__ == "__main__":
    main()
