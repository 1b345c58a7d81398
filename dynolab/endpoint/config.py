"""What is asked of a model behind an endpoint, how, and what comes back."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PATIENCE = frozenset({"requests_per_minute", "concurrency", "timeout_seconds", "attempts"})
"""Settings that decide how long answers take, and not what they are."""


class EndpointConfig(BaseModel):
    """A model behind an OpenAI-compatible endpoint, and how patiently it is asked.

    Address and key come from the environment alone: `OPENAI_BASE_URL`, `OPENAI_API_KEY`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = Field(..., min_length=1, description="Name that the endpoint knows it by.")
    temperature: float | None = Field(0.7, ge=0, description="null: the endpoint's own.")
    max_tokens: int | None = Field(1024, ge=1, description="Longest answer; null: its own.")
    requests_per_minute: float = Field(60, gt=0, description="Retries are requests, too.")
    concurrency: int = Field(4, ge=1, description="Requests under way at a time.")
    timeout_seconds: float = Field(60, gt=0, description="For one request.")
    attempts: int = Field(6, ge=1, description="Requests for one answer, before it is given up.")

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings that decide what is answered, as the protocol names them."""
        known = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in known.items() if value is not None}


class Request(BaseModel):
    """One text to be answered, after a system message where there is one.

    Requests with one text and other `sample`s ask for other samples: each has its own answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    sample: str = ""
    system: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """As the protocol has them."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]

    def key(self, config: EndpointConfig) -> str:
        """sha256 of all that an answer depends on: model, settings, texts and sample."""
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
    """An answer with words; `cut` where it reached its longest before its end.

    `declined`: the model would not answer, or a filter took its answer; `text` is what came then.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str = Field(..., pattern=r"\S")
    cut: bool = False
    declined: bool = False


class Failure(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reason: str
