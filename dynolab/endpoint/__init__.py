"""Client for models behind OpenAI-compatible endpoints, with retries and a cache of answers."""

from dynolab.endpoint.client import AnswerCache, Endpoint, endpoint_from_environment
from dynolab.endpoint.config import Answered, EndpointConfig, Failure, Request

__all__ = [
    "AnswerCache",
    "Answered",
    "Endpoint",
    "EndpointConfig",
    "Failure",
    "Request",
    "endpoint_from_environment",
]
