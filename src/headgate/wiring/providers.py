"""The table of providers: how each is built, and how its options are checked before anything starts."""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.provider import Provider
from headgate.core.problems import InvalidSettings, Problem
from headgate.core.timeouts import Timeouts
from headgate.machine.context import note_headers
from headgate.providers import anthropic, bedrock, ollama, openai
from headgate.providers.simulated import SimulatedProvider, options_for
from headgate.transport import Proxies, Transport


class Transports:
    """Connections to upstreams, shared by all that trust the same authorities. Made when first needed."""

    def __init__(self, stamp: Callable[[], bytes] | None = None) -> None:
        self._stamp = stamp
        self._by_ca_file: dict[str | None, Transport] = {}

    def get(self, ca_file: str | None = None) -> Transport:
        transport = self._by_ca_file.get(ca_file)
        if transport is None:
            proxies = Proxies.from_environment(os.environ)
            transport = Transport(ca_file=ca_file, proxies=proxies, stamp=self._stamp, listen=note_headers)
            self._by_ca_file[ca_file] = transport
        return transport

    async def aclose(self) -> None:
        for transport in self._by_ca_file.values():
            await transport.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a provider is given besides its own options."""

    clock: Clock
    chance: Chance
    timeouts: Timeouts
    transports: Transports


@dataclass(frozen=True, slots=True)
class ProviderKind:
    """One line of the table."""

    build: Callable[[str | None, Mapping[str, Any], Surroundings], Provider]
    check: Callable[[str | None, Mapping[str, Any]], None]


def _simulated(model: str | None, options: Mapping[str, Any], given: Surroundings) -> SimulatedProvider:
    name = model or "simulated"
    # A seed of its own makes one upstream repeatable whatever the others do.
    chance = random.Random(options["seed"]).random if "seed" in options else given.chance
    return SimulatedProvider(
        options_for(name, options),
        model=name,
        clock=given.clock,
        chance=chance,
        connect_timeout_s=given.timeouts.connect_s,
    )


def _check_simulated(model: str | None, options: Mapping[str, Any]) -> None:
    options_for(model or "simulated", options)


Options_contra = TypeVar("Options_contra", contravariant=True)


class _Maker(Protocol[Options_contra]):
    def __call__(
        self, options: Options_contra, *, model: str, transport: Transport, timeouts: Timeouts
    ) -> Provider: ...


def _remote(
    read: Callable[[Mapping[str, Any]], Options_contra], make: _Maker[Options_contra]
) -> ProviderKind:
    """A provider at the other end of a connection: it needs a model's name, and a transport that trusts its server."""

    def build(model: str | None, options: Mapping[str, Any], given: Surroundings) -> Provider:
        checked = read(options)
        if not model:
            raise InvalidSettings([Problem("model", "must name the provider's own model")])
        transport = given.transports.get(getattr(checked, "ca_file", None))
        return make(checked, model=model, transport=transport, timeouts=given.timeouts)

    def check(_model: str | None, options: Mapping[str, Any]) -> None:
        read(options)

    return ProviderKind(build, check)


PROVIDERS: Mapping[str, ProviderKind] = {
    "openai": _remote(openai.read_options, openai.OpenAIProvider),
    "anthropic": _remote(anthropic.read_options, anthropic.AnthropicProvider),
    "ollama": _remote(ollama.read_options, ollama.OllamaProvider),
    "bedrock": _remote(bedrock.read_options, bedrock.BedrockProvider),
    "simulated": ProviderKind(_simulated, _check_simulated),
}
