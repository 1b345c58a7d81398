"""The blocks of parameters that a force map is broken down into."""

from __future__ import annotations

from dataclasses import dataclass

from dynolab.forces.map.gram import Kernel

HEAD, EMBEDDING, TIED = "head", "embedding", "tied"


@dataclass(frozen=True)
class Blocks:
    """`embedding`, `attention.q`, `.k`, `.v`, `.o` (`.qkv` where one matrix makes all three),
    `mlp`, `norms`, `head`, `tied`, and `other` for unrecognised names.

    `tied` is the product of a shared table's use as embedding with its use as head.
    """

    names: tuple[str, ...]
    block_of: dict[tuple[str, str], str]

    @classmethod
    def of(cls, kernel: Kernel) -> Blocks:
        """The blocks of the parameters that move."""
        heads = {rule.weight for rule in kernel.rules if rule.head}
        embeddings = {rule.weight for rule in kernel.rules if rule.kind == "embedding"}
        norms = {name for rule in kernel.rules if rule.kind == "norm" for name in rule.names}
        block_of = {}
        for name in kernel.wanted:
            block = "norms" if name in norms else block_by_name(name, name in embeddings)
            block_of[name, "own"] = HEAD if name in heads - embeddings else block
            if name in heads & embeddings - kernel.generic:
                block_of |= {(name, HEAD): HEAD, (name, TIED): TIED}
        return cls(tuple(sorted(set(block_of.values()))), block_of)

    def number(self, name: str, use: str) -> int:
        """The place in `names` of a parameter's use (`contraction.Into`)."""
        return self.names.index(self.block_of[name, use])


def block_by_name(name: str, embedding: bool) -> str:
    """The block of a parameter, by its name in transformers' model families."""
    if embedding:
        return EMBEDDING
    for letter, words in _ATTENTION.items():
        if any(word in name for word in words):
            return f"attention.{letter}"
    if any(word in name for word in ("mlp", "feed_forward", "ffn", "fc1", "fc2")):
        return "mlp"
    return HEAD if any(word in name for word in ("lm_head", "embed_out")) else "other"


_ATTENTION = {
    "qkv": ("query_key_value", "c_attn", "qkv_proj", "Wqkv"),
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "o": ("o_proj", "attention.dense", "attn.c_proj", "attn.out_proj"),
}
