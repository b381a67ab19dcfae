"""OpenAI's format: OpenAI itself, Azure, vLLM, llama.cpp and every other server that speaks it."""

from headgate.providers.openai.options import Auth, OpenAIOptions, read_options
from headgate.providers.openai.provider import OpenAIProvider

__all__ = ["Auth", "OpenAIOptions", "OpenAIProvider", "read_options"]
