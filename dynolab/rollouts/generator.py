"""What a generator is: prompts in, sampled responses out, the same ones wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dynolab import distributed
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SampleConfig(BaseModel):
    """How responses are drawn from a policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    temperature: float = Field(1.0, ge=0, description="0: the likeliest token every time.")
    max_new_tokens: int = Field(64, ge=1)
    batch_size: int = Field(64, ge=1, description="Responses that grow side by side.")
    seed: int = Field(0, ge=0)
    stop: tuple[str, ...] = Field(
        (), description="Texts that end a response; they are not part of it."
    )

    @field_validator("stop")
    @classmethod
    def _says_something(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ConfigError("stop", list(stop), "an empty text stands everywhere; leave it out")
        return stop


@dataclass(frozen=True)
class Sampled:
    """One sampled response.

    `encoded` holds the prompt's tokens and the drawn ones, end-of-sequence included where it was
    drawn; `text` is the response without it and without what stands from a stop text on.
    `finished` says that the response ended itself, and was not cut at its longest. `logps` are
    the drawn tokens' log-probabilities, in nats, under the distribution they were drawn from
    (greedy: at temperature 1); rounding moves them, so they are no part of a response's identity.
    """

    encoded: Encoded
    text: str
    finished: bool
    logps: tuple[float, ...] = field(compare=False)

    @property
    def response(self) -> tuple[int, ...]:
        """The drawn tokens."""
        return self.encoded.ids[self.encoded.prompt_length :]


class Generator(Protocol):
    """Draws responses from a policy's whole distribution (no top-k, no nucleus)."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        samples: int = 1,
        step: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Sampled]]:
        """Responses to every prompt, in order.

        **Arguments:**

        - `prompts`: token ids, as encoding makes them.
        - `samples`: responses to each prompt.
        - `step`, `numbers`: a response is drawn with the random numbers of (`config.seed`,
          `step`, its prompt's number, its number among the prompt's), whatever else is drawn
          beside it. By default prompts are numbered from 0.

        **Raises:** `ConfigError` for prompts that leave no room for a response.
        """


def generate_on_ranks(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    config: SampleConfig,
    *,
    samples: int = 1,
    step: int = 0,
) -> list[list[Sampled]]:
    """Responses to every prompt, on every rank; each rank draws its share of them.

    They are the responses that one process alone would draw.
    """
    mine = generator.generate(
        distributed.deal(prompts),
        config,
        samples=samples,
        step=step,
        numbers=distributed.deal(range(len(prompts))),
    )
    return distributed.gather_dealt(mine)


def check_prompts(prompts: Sequence[Sequence[int]], context: int) -> None:
    """Refuses prompts without tokens and prompts that leave no room for a response."""
    if any(len(prompt) == 0 for prompt in prompts):
        raise ConfigError("prompts", "an empty prompt", "give every prompt at least one token")
    full = [number for number, prompt in enumerate(prompts) if len(prompt) >= context]
    if full:
        raise ConfigError(
            "prompts",
            f"{len(full)} of {len(prompts)} fill the context of {context} tokens",
            f"the first is number {full[0]} with {len(prompts[full[0]])} tokens; shorten or drop "
            "them, or use a model with a longer context",
        )


def end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The tokenizer's end-of-sequence token; `ConfigError` where it has none."""
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "model.tokenizer.eos_token", None, "name an end-of-sequence token in the tokenizer"
        )
    return int(tokenizer.eos_token_id)


def read_response(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stop: Sequence[str]
) -> tuple[str, bool]:
    """Text of drawn tokens up to the first stop text, and whether one was found."""
    eos = tokenizer.eos_token_id
    own = ids[:-1] if ids and ids[-1] == eos else ids
    text = str(tokenizer.decode(list(own), skip_special_tokens=True))
    cuts = [place for place in (text.find(stop_text) for stop_text in stop) if place >= 0]
    return (text[: min(cuts)], True) if cuts else (text, False)


def flat(groups: Sequence[Sequence[Sampled]]) -> list[Sampled]:
    """All responses, prompt by prompt."""
    return list(chain.from_iterable(groups))
