"""The vocabularies of the built-in topics: fields of life, and in each field some topics."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIELDS: dict[str, tuple[str, ...]] = {
    "sport": _words("team coach score win season player league match training fans record"),
    "kitchen": _words("recipe taste fresh spoon dish salt heat minutes serve bowl hungry"),
    "science": _words("theory measure data sample result model study error test scale paper"),
    "money": _words("price pay account cost bank interest rate contract euro risk offer"),
}
"""Words that all topics of a field share."""

TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "football": ("sport", _words("goal striker penalty corner pitch keeper offside tackle")),
    "tennis": ("sport", _words("racket ace set volley court backhand umpire deuce")),
    "swimming": ("sport", _words("pool lane stroke dive relay goggles butterfly lap")),
    "baking": ("kitchen", _words("flour oven dough yeast crust cake sugar butter")),
    "grilling": ("kitchen", _words("charcoal steak smoke rib marinade flame skewer tongs")),
    "brewing": ("kitchen", _words("hops malt barrel foam ferment bottle lager cellar")),
    "astronomy": ("science", _words("star orbit planet telescope comet galaxy lens dust")),
    "biology": ("science", _words("cell gene protein tissue species enzyme leaf nerve")),
    "chemistry": ("science", _words("acid reaction catalyst bond ion solvent flask powder")),
    "insurance": ("money", _words("claim policy premium damage cover accident insurer loss")),
    "housing": ("money", _words("rent tenant flat deposit landlord lease roof garden")),
    "trading": ("money", _words("share broker market stock index trend dividend ticker")),
}
"""Every topic with its field and its own words, the commonest first."""

COMMON = _words(
    "the a and of to in is was that with for on it as but from they have more this when about "
    "said very then over after some new long"
)
"""Words common to all texts."""
