"""Which token of which pair pushes which token of an answer, from texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from jaxtyping import Float
from numpy import ndarray
from pydantic import TypeAdapter

from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.chat import Write, writer_of
from dynolab.data.encode import Encoded, EncodedExample, Encoder, Overlong
from dynolab.data.probes.build import Watched
from dynolab.data.rows import Example, ProbeRow
from dynolab.data.sources.readers import pairs as read_pairs
from dynolab.data.token_texts import token_strings
from dynolab.data.unknown import warn_of_unread
from dynolab.errors import ConfigError, check_installed, check_known
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.map.analysis import recorded_examples
from dynolab.forces.map.breakdown import Breakdown, breakdown
from dynolab.forces.map.excerpts import token_map_of
from dynolab.forces.map.force_map import ForceMap, force_map as map_of_tokens
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import Objective, build_objective
from dynolab.objectives.registry import RowConfig, RowObjectiveConfig
from dynolab.training.reference import score_reference
from dynolab.training.step_record import RecordedExample

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Side = Literal["chosen", "rejected"]
Pair = Example | Mapping[str, Any]
Answer = Pair | ProbeRow


_NAMED = 3  # tokens of a push


@dataclass(frozen=True)
class Push:
    """What one side of a pair does to an answer, in nats per step of SGD.

    `tokens`: those of its tokens that push it down hardest, with their nats.
    """

    pair: str
    side: Side
    nats: float
    tokens: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class TextForces:
    """The force map of texts: answers by tokens of pairs. Answers and pairs go by id or number.

    `map` is the whole map of tokens.
    """

    map: ForceMap = field(repr=False)
    answers: tuple[str, ...]
    pairs: tuple[str, ...]
    learning_rate: float
    _observed: tuple[Encoded, ...] = field(repr=False)
    _updating: tuple[RecordedExample, ...] = field(repr=False)
    _policy: PolicyFunction = field(repr=False)
    _objective: Objective = field(repr=False)
    _config: RowObjectiveConfig = field(repr=False)
    _tokenizer: PreTrainedTokenizerBase = field(repr=False)

    def block(
        self, answer: int | str, pair: int | str, side: Side = "chosen"
    ) -> Float[ndarray, "observed updating"]:
        """The answer's tokens × the tokens of one side of a pair, in nats of log π per step.

        **Raises:** `ConfigError` for an answer or pair that is not in the map, or a pair's side on
        which the objective does not train.
        """
        name = self.pairs[_place("pair", pair, self.pairs)]
        for column, response in enumerate(self.map.updating):
            if response.id == name and response.side == side:
                return self.map.block(_place("answer", answer, self.answers), column)
        sides = sorted({response.side for response in self.map.updating if response.id == name})
        raise ConfigError("side", side, f"this objective trains on: {', '.join(sides)}")

    def pushes(self, answer: int | str) -> list[Push]:
        """What every side of every pair does to the answer, what pushes it down hardest first."""
        row = _place("answer", answer, self.answers)
        pushes = []
        for column, response in enumerate(self.map.updating):
            nats = self.map.block(row, column).sum(0)
            names = token_strings(Encoded(response.tokens, 0), self._tokenizer)
            worst = tuple((names[n], float(nats[n])) for n in nats.argsort()[:_NAMED])
            pushes.append(Push(response.id, response.side, float(nats.sum()), worst))
        return sorted(pushes, key=lambda push: push.nats)

    def plot(self, answer: int | str = 0, pair: int | str = 0) -> Figure:
        """The answer's tokens × the pair's, chosen and then rejected, with sums at the margins.

        **Raises:** `ConfigError` without plotly.
        """
        check_installed("plot", "plotly", "report")
        from dynolab.report.forces.token_map_plot import token_map_plot

        row, column = _place("answer", answer, self.answers), _place("pair", pair, self.pairs)
        return token_map_plot(
            token_map_of(
                self.map,
                row,
                self.pairs[column],
                self._tokenizer,
                observed_id=self.answers[row],
                observed_kind="watched",
                stage=self._config.name,
                step=None,
                learning_rate=self.learning_rate,
            )
        )

    def breakdown(self) -> Breakdown:
        """The same forces by parameter block and by A and G; costs about as much as the map."""
        return breakdown(
            self._policy,
            self._observed,
            self._updating,
            self._objective,
            update=self.learning_rate,
        )


def force_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    observed: Sequence[Answer],
    updating: Sequence[Pair],
    objective: str | RowObjectiveConfig = "dpo",
    reference: PreTrainedModel | None = None,
    learning_rate: float = 1e-3,
    overlong: Overlong = "error",
) -> TextForces:
    """What one gradient step on some pairs does to some answers, token by token, to first order.

    Pairs and answers are `Example`s, or rows as `load_data` reads them, texts or chat messages,
    with `prompt`, `chosen` and, for losses on pairs, `rejected`; without an `id` their number is
    it. Of an observed pair, the chosen answer is observed; a `ProbeRow` is any other answer, or a
    row with `prompt` and `response`.

    **Arguments:**

    - `objective`: its name, with default settings, or its config, such as `DPOConfig(beta=0.3)`.
    - `reference`: the reference policy of objectives that need one; default: the model itself, as
      at the start of training.
    - `learning_rate`: of the step, whose loss is the mean over all pairs given; pushes are
      proportional to it.
    - `overlong`: what happens to texts longer than the context.

    `dynolab.forces.force_map` is the engine below it: for steps in an optimizer's metric, maps on
    disk and several ranks.

    **Raises:** `ConfigError` for texts without tokens or too long, an unknown objective, and what
    the engine refuses, such as 16-bit arithmetic.
    """
    config = _objective(objective)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    encoder = Encoder(tokenizer, int(context or 2**31), overlong)  # none in a recurrent model
    write = writer_of(tokenizer)
    rows = [_answer(number, row, write) for number, row in enumerate(observed)]
    encoded = [encoder.probe(row) for row in rows]
    readable = [
        (row.pair_id, sequence)
        for row, sequence in zip(rows, encoded, strict=True)
        if sequence is not None
    ]
    if not readable:
        raise ConfigError("observed", len(rows), "none fits the model's context; give shorter ones")
    examples = [_pair(number, row, write) for number, row in enumerate(updating)]
    pairs = encoder.examples(examples)
    policy, built = PolicyFunction(model), build_objective(config)
    scores = _scores(reference or model, pairs, tokenizer) if built.needs_reference else None
    recorded = recorded_examples(pairs, scores)
    texts = [text for row in examples for text in (row.chosen, row.rejected) if text]
    warn_of_unread(tokenizer, [*(row.response for row in rows), *texts])
    answers = tuple(sequence for _, sequence in readable)
    return TextForces(
        map_of_tokens(policy, answers, recorded, built, update=learning_rate),
        tuple(name for name, _ in readable),
        tuple(pair.id for pair in pairs),
        learning_rate,
        answers,
        tuple(recorded),
        policy,
        built,
        config,
        tokenizer,
    )


def _objective(objective: str | RowObjectiveConfig) -> RowObjectiveConfig:
    if not isinstance(objective, str):
        return objective
    objective_names = [config.model_fields["name"].default for config in get_args(RowConfig)]
    check_known("objective", objective, objective_names)
    config: RowObjectiveConfig = TypeAdapter(RowObjectiveConfig).validate_python(
        {"name": objective}
    )
    return config


def _pair(number: int, row: Pair, write: Write) -> Example:
    if isinstance(row, Example):
        return row
    (pair,) = read_pairs([row], "row", write)
    if pair is None:
        raise ConfigError(f"row {number}", sorted(row), "its two answers have no prompt in common")
    return pair.model_copy(update={"id": str(row.get("id", number))})


def _answer(number: int, row: Answer, write: Write) -> ProbeRow:
    if isinstance(row, ProbeRow):
        return row
    if isinstance(row, Mapping) and "response" in row:
        row = {"id": number, "prompt": row["prompt"], "chosen": row["response"], **row}
        row.pop("response")
    pair = _pair(number, row, write)
    return Watched(pair, "train").row("watched", pair.chosen, "given")


def _scores(
    model: PreTrainedModel, pairs: Sequence[EncodedExample], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    sides = [CHOSEN] if pairs[0].rejected is None else [CHOSEN, REJECTED]
    training = model.training
    model.eval()
    try:
        return score_reference(ResponseLogits(model), pairs, sides, int(pad), batch=8)
    finally:
        model.train(training)


def _place(field: str, name: int | str, names: Sequence[str]) -> int:
    if isinstance(name, int) and -len(names) <= name < len(names):
        return name % len(names)
    if isinstance(name, str) and name in names:
        return names.index(name)
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    raise ConfigError(field, name, f"choose a number below {len(names)}, or one of {some}")
