"""Endpoint settings, requests, and their answers or failures."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PATIENCE = frozenset({"requests_per_minute", "concurrency", "timeout_seconds", "attempts"})
"""Settings that affect how long answers take, but not the answers."""


class EndpointConfig(BaseModel):
    """A model behind an OpenAI-compatible endpoint, with its sampling, rate limit and retries.

    Address and key come only from the environment: `OPENAI_BASE_URL`, `OPENAI_API_KEY`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = Field(..., min_length=1, description="The model's name at the endpoint.")
    temperature: float | None = Field(0.7, ge=0, description="null: the endpoint's default.")
    max_tokens: int | None = Field(
        1024, ge=1, description="Maximum length of an answer; null: the endpoint's default."
    )
    requests_per_minute: float = Field(60, gt=0, description="Rate limit, without retries.")
    concurrency: int = Field(4, ge=1, description="Concurrent requests.")
    timeout_seconds: float = Field(60, gt=0, description="Timeout of one request.")
    attempts: int = Field(6, ge=1, description="Tries of a request before giving up.")

    @property
    def sampling(self) -> dict[str, Any]:
        """Settings that affect the answer, under their names in the API."""
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in settings.items() if value is not None}


class Request(BaseModel):
    """One text to answer, after an optional system message.

    Requests with the same text but different `sample`s get separate answers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    sample: str = ""
    system: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """Messages in the API's format."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]

    def key(self, config: EndpointConfig) -> str:
        """sha256 of everything that an answer depends on: model, settings, texts and sample."""
        content = {
            "model": config.model,
            "sampling": config.sampling,
            "text": self.text,
            "sample": self.sample,
        }
        if self.system:
            content["system"] = self.system
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Answered(BaseModel):
    """A nonempty answer; `cut` if it was truncated at the maximum length.

    `declined`: the model refused, or a content filter removed the answer; `text` is what came
    instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str = Field(..., pattern=r"\S")
    cut: bool = False
    declined: bool = False


class Failure(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reason: str
