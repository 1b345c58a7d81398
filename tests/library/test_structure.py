"""What `make lint` counts in `tests/structure.py` is found where it is made."""

from __future__ import annotations

import grimp

from tests.structure import bare_tensors, circles

CODE = """
Weights = dict[str, Tensor]
Rows = Float[Tensor, "rows width"]
NARROWING = frozenset({Tensor.float})

def products(left: Tensor, right: Rows, count: int = 1) -> list[torch.Tensor]:
    total: Int[Tensor, ""] = isinstance(left, Tensor)
    parts: dict[str, Callable[[Tensor], Rows]] = {}
"""


def test_a_circle_is_found_over_other_modules_and_a_chain_is_none() -> None:
    graph = grimp.ImportGraph()
    imports = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("f", "a")]
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == {frozenset("abc")}


def test_tensors_without_a_shape_are_found_in_annotations_and_aliases() -> None:
    assert sorted(bare_tensors(CODE)) == [2, 6, 6, 8]
