"""Ollama's own API: OpenAI's shapes on our side, lines of JSON on its own."""

from headgate.providers.ollama.options import OllamaOptions, read_options
from headgate.providers.ollama.provider import OllamaProvider

__all__ = ["OllamaOptions", "OllamaProvider", "read_options"]
