"""The Ollama provider in front of a scripted server."""

from typing import Any

from providers.http_stage import Stage

from headgate.core.timeouts import Timeouts
from headgate.providers.ollama import OllamaProvider, read_options
from headgate.transport import Transport


def ollama_stage(timeouts: Timeouts | None = None, *, path: str = "", **options: Any) -> Stage:
    def build(url: str, transport: Transport) -> OllamaProvider:
        given = read_options({"base_url": url + path, **options})
        return OllamaProvider(given, model="gemma3:4b", transport=transport, timeouts=timeouts or Timeouts())

    return Stage(build)


STAGE = ollama_stage()
