"""The generator on vLLM, where it is installed: faster, from a folder of saved weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.rollouts.generator import (
    SampleConfig,
    Sampled,
    check_prompts,
    end_token,
    read_response,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class VLLMGenerator:
    """Draws responses with vLLM from the weights in a folder.

    Every response has its own seed, made of the same keys as elsewhere, so it does not depend on
    the batch; its random numbers are vLLM's, so it is not the response that `ModelGenerator`
    draws.

    **Raises:** `ConfigError` where vLLM is not installed, and for a tokenizer without an
    end-of-sequence token.
    """

    def __init__(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, context: int, **settings: Any
    ) -> None:
        end_token(tokenizer)
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise ConfigError(
                "generator",
                "vllm",
                "vLLM is not installed; pip install vllm on a machine with a GPU, or sample with "
                "the model itself",
            ) from error
        self._parameters = SamplingParams
        self._tokenizer, self._context = tokenizer, context
        self._engine = LLM(
            str(folder),
            max_model_len=context,
            trust_remote_code=False,
            logprobs_mode="processed_logprobs",
            **settings,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        config: SampleConfig,
        *,
        samples: int = 1,
        step: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Sampled]]:
        """As `Generator.generate`."""
        check_prompts(prompts, self._context)
        names = range(len(prompts)) if numbers is None else numbers
        asked, how = [], []
        for prompt, name in zip(prompts, names, strict=True):
            limit = min(config.max_new_tokens, self._context - len(prompt))
            for sample in range(samples):
                asked.append({"prompt_token_ids": list(prompt)})
                how.append(self._how(config, limit, (step, name, sample)))
        answered = self._engine.generate(asked, how, use_tqdm=False)
        drawn = [
            self._read(one["prompt_token_ids"], out.outputs[0], config)
            for one, out in zip(asked, answered, strict=True)
        ]
        return [drawn[start : start + samples] for start in range(0, len(drawn), samples)]

    def _how(self, config: SampleConfig, limit: int, keys: tuple[int, int, int]) -> Any:
        seed = np.random.SeedSequence([config.seed, *keys]).generate_state(1)
        return self._parameters(
            temperature=config.temperature,
            top_p=1.0,
            top_k=-1,
            max_tokens=limit,
            seed=int(seed[0]),
            stop=list(config.stop) or None,
            logprobs=0,
            include_stop_str_in_output=True,
        )

    def _read(self, prompt: list[int], output: Any, config: SampleConfig) -> Sampled:
        ids = tuple(output.token_ids)
        text, _ = read_response(self._tokenizer, ids, config.stop)
        logps = tuple(
            float(at[token].logprob) for token, at in zip(ids, output.logprobs, strict=True)
        )
        encoded = Encoded((*prompt, *ids), len(prompt))
        return Sampled(encoded, text, output.finish_reason == "stop", logps)
