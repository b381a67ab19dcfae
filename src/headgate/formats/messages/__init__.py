"""Anthropic's Messages API: chat requests as its bodies, its answers and events as chat completions. Pure."""
