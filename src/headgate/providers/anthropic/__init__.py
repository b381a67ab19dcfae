"""Anthropic's Messages API: OpenAI's shapes on our side, content blocks on its own."""

from headgate.providers.anthropic.options import AnthropicOptions, read_options
from headgate.providers.anthropic.provider import AnthropicProvider

__all__ = ["AnthropicOptions", "AnthropicProvider", "read_options"]
