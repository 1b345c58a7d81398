"""Models behind OpenAI-compatible endpoints: asked with patience, each answer kept by content."""

from dynolab.endpoint.answers import AnswerCache
from dynolab.endpoint.client import Endpoint, endpoint_from_environment
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
