"""The generator protocol: prompts in, sampled responses out, independent of batch and rank."""

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
    """How responses are sampled from a policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    temperature: float = Field(1.0, ge=0, description="0: greedy decoding.")
    max_new_tokens: int = Field(64, ge=1)
    batch_size: int = Field(64, ge=1, description="Responses generated at once.")
    seed: int = Field(0, ge=0)
    stop: tuple[str, ...] = Field((), description="Texts that end a response; cut from it.")

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ConfigError("stop", list(stop), "an empty text matches everywhere; remove it")
        return stop


@dataclass(frozen=True)
class Sampled:
    """One sampled response.

    `encoded` holds the prompt's and the sampled tokens, including a sampled end-of-sequence;
    `text` is the response without that token, cut before the first stop text. `finished` is false
    if the response was cut at its maximum length. `logps` are the sampled tokens'
    log-probabilities, in nats, under the distribution they were drawn from (greedy: at
    temperature 1); they depend on rounding, so comparison of responses ignores them.
    """

    encoded: Encoded
    text: str
    finished: bool
    logps: tuple[float, ...] = field(compare=False)

    @property
    def response(self) -> tuple[int, ...]:
        """The sampled tokens."""
        return self.encoded.ids[self.encoded.prompt_length :]


class Generator(Protocol):
    """Samples responses from a policy's full distribution (no top-k, no nucleus)."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        samples: int = 1,
        step: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Sampled]]:
        """Returns responses to every prompt, in order.

        **Arguments:**

        - `prompts`: encoded prompts, as token ids.
        - `samples`: responses to each prompt.
        - `step`, `numbers`: (`config.seed`, `step`, the prompt's number, the sample's index) seed
          a response's random numbers, whatever else is in the batch. By default prompts are
          numbered from 0.

        **Raises:** `ConfigError` for empty prompts and those that leave no room for a response.
        """


def generate_on_ranks(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    config: SampleConfig,
    *,
    samples: int = 1,
    step: int = 0,
) -> list[list[Sampled]]:
    """Returns responses to every prompt on every rank; each rank samples its share.

    A single process would sample the same responses.
    """
    return distributed.gather_dealt(
        generator.generate(
            distributed.deal(prompts),
            config,
            samples=samples,
            step=step,
            numbers=distributed.deal(range(len(prompts))),
        )
    )


def check_prompts(prompts: Sequence[Sequence[int]], context: int) -> None:
    """Raises ConfigError for empty prompts and for prompts that leave no room for a response."""
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
    """The tokenizer's end-of-sequence token; `ConfigError` if it has none."""
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "model.tokenizer.eos_token", None, "set an end-of-sequence token in the tokenizer"
        )
    return int(tokenizer.eos_token_id)


def read_response(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stop: Sequence[str]
) -> tuple[str, bool]:
    """Decodes sampled tokens up to the first stop text; returns whether there was one."""
    without_eos = ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
    text = str(tokenizer.decode(list(without_eos), skip_special_tokens=True))
    cuts = [index for index in (text.find(stop_text) for stop_text in stop) if index >= 0]
    return (text[: min(cuts)], True) if cuts else (text, False)


def flat(groups: Sequence[Sequence[Sampled]]) -> list[Sampled]:
    """Flattens the groups into one list of responses."""
    return list(chain.from_iterable(groups))
