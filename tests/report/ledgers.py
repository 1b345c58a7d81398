"""A small account worked out by hand, as the stage writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.data.rows import Example, write_rows
from dynolab.results.ledger import FunctionalRow, LedgerSummary, write_table
from dynolab.results.ledger_reader import LedgerReader, read_ledger

LINES = {  # (step, response): what it did to the mean of chosen answers, and to answer b
    (0, 0): (1.0, 0.5),
    (0, 1): (-3.0, -4.0),
    (1, 0): (0.25, 2.0),
    (1, 1): (-0.5, -1.0),
}
RESPONSES = [(0, 0, "a", "chosen"), (0, 1, "a", "rejected"), (1, 0, "b", "chosen")]
RESPONSES += [(1, 1, "c", "rejected")]
STEPS = {  # before, after, predicted of either functional, step by step
    "train/chosen": [(-10.0, -12.0, -1.875), (-12.0, -12.25, -0.25)],
    "b": [(-5.0, -8.5, -3.5), (-8.5, -7.5, 1.0)],
}
NAMES = list(STEPS)


def write_ledger(
    folder: Path,
    tokens: Sequence[str] = (" <b>", "end"),
    rejected: str = " <i>no</i>",
    weight: int = 1,
) -> LedgerReader:
    """Writes the tables, and reads them.

    **Arguments:** `tokens`: of the rejected answer that pulled hardest, and `rejected`: its text;
    `weight`: how many steps step 1 stands for.
    """
    keys = list(LINES)
    write_table(
        folder,
        "lines",
        {
            "step": [step for step, _ in keys for _ in NAMES],
            "response": [response for _, response in keys for _ in NAMES],
            "functional": NAMES * len(keys),
            "nats": [value for values in LINES.values() for value in values],
        },
    )
    columns = ("step", "response", "example", "side")
    responses = dict(zip(columns, map(list, zip(*RESPONSES, strict=True)), strict=True))
    write_table(folder, "responses", responses | {"tokens": [[5, 6]] * len(RESPONSES)})
    rows = [(step, name, *STEPS[name][step]) for step in (1, 0) for name in NAMES]
    steps = dict(
        zip(
            ("step", "functional", "before", "after", "predicted"),
            map(list, zip(*rows, strict=True)),
            strict=True,
        )
    )
    more = {
        "decay": [0.125, 0, 0, 0],
        "carried_in": [0] * 4,
        "together": [0] * 4,
        "weight": [weight, weight, 1, 1],
        "rounding": [0] * 4,
        "unexplained": [0] * 4,
    }
    write_table(folder, "steps", steps | more)
    write_table(
        folder,
        "tokens",
        {
            "step": [0] * len(tokens),
            "response": [1] * len(tokens),
            "functional": ["b"] * len(tokens),
            "place": list(range(len(tokens))),
            "token": list(tokens),
            "nats": [-3.5, *[-0.5 / (len(tokens) - 1)] * (len(tokens) - 1)],
        },
    )
    write_table(
        folder,
        "sources",
        {
            "step": [1, 0],
            "functional": ["b", "b"],
            "lbk": [1.0, 1.0],
            "sign_delta": [0.5, -2.0],
            "kernel_bound": [0.1, 0.2],
        },
    )
    write_table(
        folder,
        "blocks",
        {
            "step": [1, 1, 0, 0],
            "block": ["layers.0", "layers.0", "lm_head", "layers.0"],
            "functional": ["b"] * 4,
            "side": ["chosen", "rejected", "rejected", "rejected"],
            "nats": [2.5, -1.0, -3.5, -0.5],
        },
    )
    functionals = [
        FunctionalRow(name="train/chosen", split="train", kind="chosen", pairs=("a", "b")),
        FunctionalRow(name="b", split="train", kind="chosen", pairs=("b",)),
    ]
    write_rows(folder / "functionals.jsonl", functionals)
    summary = LedgerSummary(
        steps=2, responses=4, closure=1e-9, residual_share=0.05, rounding_share=0, every=weight
    )
    (folder / "ledger.json").write_text(summary.model_dump_json())
    examples = [
        Example(id=name, prompt=f"what is {name}", chosen=f" {name} it is", rejected=rejected)
        for name in "abc"
    ]
    write_rows(folder / "train.jsonl", examples)
    return read_ledger(folder, folder)
