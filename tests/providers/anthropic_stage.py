"""The Anthropic provider in front of a scripted server."""

from typing import Any

from providers.http_stage import KEY, Stage

from headgate.core.timeouts import Timeouts
from headgate.providers.anthropic import AnthropicProvider, read_options
from headgate.transport import Transport


def anthropic_stage(timeouts: Timeouts | None = None, *, path: str = "", **options: Any) -> Stage:
    def build(url: str, transport: Transport) -> AnthropicProvider:
        given = read_options({"api_key": KEY, "base_url": url + path, **options})
        return AnthropicProvider(
            given, model="claude-test", transport=transport, timeouts=timeouts or Timeouts()
        )

    return Stage(build)


STAGE = anthropic_stage()
