"""The credentials in use: found once, renewed ahead of time, dropped when AWS refuses them.

Everything slow (importing botocore, asking files, processes and metadata services) happens in a thread, once for
all who wait for it.
"""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.providers.bedrock.errors import misconfigured
from headgate.providers.bedrock.options import MISSING_EXTRA, BedrockOptions
from headgate.transport.errors import TransportClosed

if TYPE_CHECKING:
    from headgate.providers.bedrock.aws import FoundCredentials, Keys

_PAUSE_AFTER_FAILURE_S: Final = 10.0


class KeyRing:
    """One upstream's credentials. Keys given in the options never change; found ones do."""

    def __init__(self, options: BedrockOptions) -> None:
        self._options = options
        self._given: Keys | None = None
        self._found: FoundCredentials | None = None
        self._work: asyncio.Task[Keys] | None = None
        self._next_renewal_at = 0.0

    async def keys(self) -> "Keys":
        """Keys to sign with. Those that age are renewed behind the callers' backs; at their end everybody waits."""
        if self._given is not None:
            return self._given
        found = self._found
        if found is None or found.keys is None or found.ending:
            # One caller's cancellation must not take the others' credentials away.
            return await asyncio.shield(self._working())
        if found.aging and asyncio.get_running_loop().time() >= self._next_renewal_at:
            self._working()
        return found.keys

    def drop(self, keys: "Keys") -> None:
        """AWS refused these keys: look for others at the next call, unless somebody did already."""
        if self._found is not None and self._found.keys is keys:
            self._found = None

    async def aclose(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _working(self) -> "asyncio.Task[Keys]":
        if self._work is None:
            self._work = asyncio.create_task(self._obtain())
            self._work.add_done_callback(self._done)
        return self._work

    def _done(self, work: "asyncio.Task[Keys]") -> None:
        self._work = None
        # Reading the exception tells asyncio that somebody cared; a renewal ahead of time has no one waiting for it.
        if not work.cancelled() and work.exception() is not None:
            self._next_renewal_at = asyncio.get_running_loop().time() + _PAUSE_AFTER_FAILURE_S

    async def _obtain(self) -> "Keys":
        try:
            return await asyncio.to_thread(self._look)
        except asyncio.CancelledError:
            # By `aclose` alone. Those who wait here are not cancelled themselves and must not look as if they were.
            raise TransportClosed(
                "the look-up of AWS credentials was given up: this process is going away"
            ) from None

    def _look(self) -> "Keys":
        try:
            from headgate.providers.bedrock import aws  # noqa: PLC0415 - slow, and an extra: not everybody has it
        except ImportError:
            raise misconfigured(MISSING_EXTRA, "missing_extra") from None
        options = self._options
        if options.access_key_id is not None and options.secret_access_key is not None:
            self._given = aws.Keys(options.access_key_id, options.secret_access_key, options.session_token)
            return self._given
        try:
            return self._find()
        except aws.LOOKUP_ERRORS as error:
            raise _not_found(classify(error, now=datetime.now(UTC))) from error
        except (OSError, ValueError, RuntimeError) as error:
            # From the operator's files and programs: a `credential_process` that is missing or prints nonsense.
            failure = classify(error, now=datetime.now(UTC))
            raise _not_found(msgspec.structs.replace(failure, kind=FailureKind.MISCONFIGURED)) from error

    def _find(self) -> "Keys":
        from headgate.providers.bedrock.aws import FoundCredentials  # noqa: PLC0415 - loaded by now

        found = self._found
        if found is None:
            found = FoundCredentials(self._options.profile)
        else:
            found.renew()
        if found.keys is None:
            raise misconfigured(
                "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, "
                "or run where a role gives them",
                "no_credentials",
            )
        self._found = found
        return found.keys


def _not_found(failure: Failure) -> ProviderFailure:
    """The texts name profiles, files and programs; none of them holds keys."""
    message = f"no AWS credentials: {failure.message} (check the profile, or renew the login)"
    return ProviderFailure(msgspec.structs.replace(failure, message=message), own=message)
