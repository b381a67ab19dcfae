"""Where credentials come from, how they are renewed and dropped. The sources are real: files, programs, a service."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from providers.bedrock_stage import KEYS, ask, failed, stage
from providers.stubs.bedrock import KEY_ID, SECRET, BedrockStub, Reply, refusal, said

from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind

HI = said({"text": "Hi"})


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of the machine that runs the tests, and no metadata service."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "DEFAULT_PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def write_profile(tmp_path: Path, token: str, name: str = "default") -> None:
    text = (
        f"[{name}]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\naws_session_token={token}\n"
    )
    (tmp_path / "credentials").write_text(text)


def tokens(stub: BedrockStub) -> list[str]:
    return [seen.headers["x-amz-security-token"] for seen in stub.seen]


class KeyService:
    """What gives credentials to a container: numbered tokens with an end. It runs on the loop of the test."""

    def __init__(self, lasting_s: float) -> None:
        self.lasting_s = lasting_s
        self.asked = 0
        self.busy = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        self.busy.set()
        number = self.asked
        await self.answering.wait()
        ends = (datetime.now(UTC) + timedelta(seconds=self.lasting_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {
            "AccessKeyId": KEY_ID,
            "SecretAccessKey": SECRET,
            "Token": f"token-{number}",
            "Expiration": ends,
        }
        body = json.dumps(keys).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    async def aclose(self) -> None:
        self.answering.set()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@asynccontextmanager
async def key_service(monkeypatch: pytest.MonkeyPatch, lasting_s: float) -> AsyncIterator[KeyService]:
    service = KeyService(lasting_s)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/keys")
    try:
        yield service
    finally:
        server.close()
        await service.aclose()


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    async def scene() -> bool:
        async with stage(HI, keys={}) as (stub, provider):
            assert (await provider.send(ask())).content == "Hi"
            return "x-amz-security-token" in stub.seen[0].headers

    assert asyncio.run(scene()) is False


def test_keys_of_a_profile(tmp_path: Path) -> None:
    write_profile(tmp_path, "of-the-profile", name="work")

    async def scene() -> list[str]:
        async with stage(HI, keys={}, profile="work") as (stub, provider):
            await provider.send(ask())
            return tokens(stub)

    assert asyncio.run(scene()) == ["of-the-profile"]


def test_many_first_calls_look_for_keys_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service answers on this very loop: a look-up that blocked it would never end."""

    async def scene() -> tuple[int, set[str]]:
        async with key_service(monkeypatch, 3600) as service, stage(*[HI] * 20, keys={}) as (stub, provider):
            await asyncio.gather(*(provider.send(ask()) for _ in range(20)))
            return service.asked, set(tokens(stub))

    assert asyncio.run(scene()) == (1, {"token-1"})


def test_a_caller_who_leaves_does_not_take_the_others_keys_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> int:
        async with key_service(monkeypatch, 3600) as service, stage(HI, keys={}) as (_, provider):
            service.answering.clear()
            first, second = (asyncio.create_task(provider.send(ask())) for _ in range(2))
            await service.busy.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            service.answering.set()
            assert (await second).content == "Hi"
            return service.asked

    assert asyncio.run(scene()) == 1


def test_aging_keys_are_renewed_while_calls_go_on_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with key_service(monkeypatch, 300) as service, stage(*[HI] * 3, keys={}) as (stub, provider):
            await provider.send(ask())
            asked = service.asked
            service.answering.clear()
            await provider.send(ask())
            assert tokens(stub)[0] == tokens(stub)[1], "nobody waits for a renewal that is not urgent"
            service.answering.set()
            while (await provider._ring.keys()).token != f"token-{asked + 1}":  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
            await provider.send(ask())
            assert tokens(stub)[2] != tokens(stub)[1]

    asyncio.run(scene())


def test_keys_at_their_end_are_renewed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> list[str]:
        async with key_service(monkeypatch, 30) as service, stage(*[HI] * 2, keys={}) as (stub, provider):
            await provider.send(ask())
            service.lasting_s = 3600
            await provider.send(ask())
            return tokens(stub)

    first, second = asyncio.run(scene())
    assert first != second


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_refused_keys_are_looked_for_anew(tmp_path: Path, code: str) -> None:
    """Who renews a login writes it to the same place; nobody must restart anything."""

    async def scene() -> list[str]:
        async with stage(HI, refusal(403, code, "no"), HI, keys={}) as (stub, provider):
            write_profile(tmp_path, "old")
            await provider.send(ask())
            write_profile(tmp_path, "new")
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask())
            assert caught.value.failure.kind is FailureKind.MISCONFIGURED
            await provider.send(ask())
            return tokens(stub)

    assert asyncio.run(scene()) == ["old", "old", "new"]


def test_a_late_refusal_does_not_drop_the_new_keys(tmp_path: Path) -> None:
    async def scene() -> None:
        async with stage(keys={}) as (_, provider):
            write_profile(tmp_path, "old")
            old = await provider._ring.keys()
            provider._ring.drop(old)
            write_profile(tmp_path, "new")
            new = await provider._ring.keys()
            provider._ring.drop(old)
            assert await provider._ring.keys() is new

    asyncio.run(scene())


def no_keys(**options: Any) -> tuple[FailureKind, str]:
    async def scene() -> tuple[FailureKind, str]:
        async with stage(keys={}, **options) as (stub, provider):
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask())
            assert stub.seen == []
            return caught.value.failure.kind, caught.value.failure.message

    return asyncio.run(scene())


def test_no_credentials_at_all() -> None:
    kind, message = no_keys()

    assert kind is FailureKind.MISCONFIGURED
    assert "set AWS_ACCESS_KEY_ID" in message


def test_an_unknown_profile() -> None:
    kind, message = no_keys(profile="nobody")

    assert kind is FailureKind.MISCONFIGURED
    assert "nobody" in message


@pytest.mark.parametrize(
    "program",
    ["/no/such/program", f"{sys.executable} -c print(1+)", f"{sys.executable} -c print('nonsense')"],
    ids=["missing", "failing", "talking nonsense"],
)
def test_a_credential_process_that_does_not_work(tmp_path: Path, program: str) -> None:
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {program}\n")

    kind, message = no_keys()

    assert kind is FailureKind.MISCONFIGURED
    assert message.startswith("no AWS credentials: ")


def test_keys_that_come_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> FailureKind:
        async with key_service(monkeypatch, -60), stage(keys={}) as (_, provider):
            with pytest.raises(ProviderFailure) as caught:
                await provider.send(ask())
            return caught.value.failure.kind

    assert asyncio.run(scene()) is FailureKind.MISCONFIGURED


def test_closing_does_not_wait_for_a_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with key_service(monkeypatch, 3600) as service, stage(keys={}) as (_, provider):
            service.answering.clear()
            call = asyncio.create_task(provider.send(ask()))
            await service.busy.wait()
            async with asyncio.timeout(1):
                await provider.aclose()
            with pytest.raises(ProviderFailure, match="going away"):
                await call

    asyncio.run(scene())


def test_a_missing_extra_is_told_at_the_first_call_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore may be there when the settings are read and broken when it is imported."""
    code = """
import asyncio, sys
from headgate.core.errors import ProviderFailure
from headgate.core.call import Call
from headgate.core.timeouts import Timeouts
from headgate.providers.bedrock import BedrockProvider, read_options
from headgate.transport import Transport
options = read_options({"region": "us-east-1"}, env={})
sys.modules["botocore.session"] = None
async def scene():
    provider = BedrockProvider(options, model="m", transport=Transport(), timeouts=Timeouts())
    try:
        await provider.send(Call(id="r", model="m", fields={"messages": [{"role": "user", "content": "Hi"}]}))
    except ProviderFailure as error:
        print(error.failure.error, error)
asyncio.run(scene())
"""
    assert (
        _run(code)
        == "misconfigured missing_extra bedrock needs its extra: pip install '.[bedrock]' in a clone of Headgate"
    )


def test_botocore_is_imported_at_the_first_call_and_in_a_thread() -> None:
    """It takes half a second, during which nothing else would run."""
    code = f"""
import asyncio, sys, threading
importers = set()
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "botocore":
            importers.add(threading.current_thread() is threading.main_thread())
sys.meta_path.insert(0, Watch())
from headgate.core.errors import ProviderFailure
from headgate.core.call import Call
from headgate.core.timeouts import Timeouts
from headgate.providers.bedrock import BedrockProvider, read_options
from headgate.transport import Transport
options = read_options({{"region": "us-east-1", "base_url": "http://127.0.0.1:9", **{KEYS!r}}}, env={{}})
loaded_early = "botocore" in sys.modules
importers.clear()
async def scene():
    provider = BedrockProvider(options, model="m", transport=Transport(), timeouts=Timeouts())
    try:
        await provider.send(Call(id="r", model="m", fields={{"messages": [{{"role": "user", "content": "Hi"}}]}}))
    except ProviderFailure as error:
        print(error.failure.error, loaded_early, importers)
asyncio.run(scene())
"""
    assert _run(code) == "transient False {False}"


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_given_keys_are_used_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")

    async def scene() -> str:
        async with stage(HI) as (stub, provider):
            await provider.send(ask())
            assert tokens(stub) == [KEYS["session_token"]]
            return stub.seen[0].headers["authorization"]

    assert f"Credential={KEY_ID}/" in asyncio.run(scene())


def test_a_debug_log_of_everything_leaves_botocore_out(caplog: pytest.LogCaptureFixture) -> None:
    """At that level it logs the answers of the services that hand out credentials."""
    with caplog.at_level(logging.DEBUG):
        assert not logging.getLogger("botocore.parsers").isEnabledFor(logging.DEBUG)


def test_given_keys_that_are_refused_stay_refused() -> None:
    reply: Reply = refusal(403, "ExpiredTokenException", "no")

    assert failed(reply).kind is FailureKind.MISCONFIGURED
