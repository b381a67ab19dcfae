"""A file of authorities takes tens of milliseconds to read: once, and not again for each member of a family."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from contracts.provider_stage import Part
from providers.stubs import openai
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import ask, openai_stub, upstream_of
from transport.certificates import Certificates
from transport.conftest import certs

from headgate.core.errors import SettingsError
from headgate.transport.connecting import tls_context

__all__ = ["certs"]


def test_new_members_of_a_family_read_no_certificates(
    play: Play, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str | None] = []
    create = ssl.create_default_context

    def counted(*, cafile: str | None = None, **more: Any) -> ssl.SSLContext:
        reads.append(cafile)
        return create(cafile=cafile, **more)

    monkeypatch.setattr(ssl, "create_default_context", counted)

    async def scene() -> None:
        async with openai_stub(openai.completion()) as stub:
            upstream = upstream_of("openai", stub, Part.ANSWER, ca_file=certs.ca_file)
            del upstream["model"]
            async with opened({"models": {"any/*": {"upstreams": [upstream]}}}) as house:
                assert reads == [certs.ca_file]
                for number in range(5):
                    assert (await ask(house, model=f"any/{number}")).status == 200
                assert reads == [certs.ca_file]

    play(scene)


def test_a_file_that_changed_is_read_again(certs: Certificates, tmp_path: Path) -> None:
    copy = tmp_path / "ca.pem"
    copy.write_bytes(Path(certs.ca_file).read_bytes())
    first = tls_context(str(copy))
    assert tls_context(str(copy)) is first
    copy.write_bytes(copy.read_bytes() * 2)
    assert tls_context(str(copy)) is not first
    copy.write_text("nothing")
    with pytest.raises(SettingsError, match="cannot be used"):
        tls_context(str(copy))
