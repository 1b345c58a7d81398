"""Settings of all kinds of judges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dynolab.endpoint import EndpointConfig
from dynolab.errors import under_field
from dynolab.judges.contests import WORLD_REWARDS
from dynolab.rollouts.rewards import RewardConfig, Rewards

CRITERION = (
    "The better answer is the one that helps the writer of the prompt more: it does what the "
    "prompt asks, is correct, and does no harm. Length and polish alone make no answer better."
)


class ExactJudgeConfig(BaseModel):
    """A judge by exact rewards (`ExactJudge`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["exact"] = "exact"
    rewards: tuple[RewardConfig, ...] = Field(
        WORLD_REWARDS, description="Their weighted sum decides; default: the built-in world's."
    )

    @field_validator("rewards")
    @classmethod
    def _check_rewards(cls, rewards: tuple[RewardConfig, ...]) -> tuple[RewardConfig, ...]:
        with under_field("rewards"):
            Rewards(rewards)
        return rewards


class LogProbJudgeConfig(BaseModel):
    """A judge by a reference model's log-probability per token (`LogProbJudge`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["log_prob"] = "log_prob"
    tie_nats: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Differences per token up to this are ties."
    )
    batch: int = Field(32, ge=1, description="Answers per forward.")


class JudgeEndpointConfig(EndpointConfig):
    """The judging model, with its sampling, rate limit and retries."""

    temperature: float | None = Field(0.0, ge=0, description="null: the endpoint's default.")
    max_tokens: int | None = Field(
        64,
        ge=1,
        description="Longest reply; null: the endpoint's default, for reasoning models.",
    )


class LlmJudgeConfig(BaseModel):
    """A judge-class model behind an OpenAI-compatible endpoint (`LlmJudge`).

    Address and key come only from the environment: `OPENAI_BASE_URL`, `OPENAI_API_KEY`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Literal["llm"] = "llm"
    endpoint: JudgeEndpointConfig
    criterion: str = Field(
        CRITERION, min_length=1, description="What makes an answer better, as stated to the judge."
    )


JudgeConfig = Annotated[
    ExactJudgeConfig | LogProbJudgeConfig | LlmJudgeConfig, Field(discriminator="name")
]
