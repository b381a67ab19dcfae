"""What the exceptions of other libraries mean, by library and class name. Data only: `foreign` reads it.

Names stand in for classes because core imports none of these libraries. An entry covers its subclasses, too;
the nearest class wins. Errors that carry an answer (a status, a code) are not here: they are read, not looked up.
"""

from collections.abc import Mapping
from typing import Final

from headgate.core.failures import Failure, FailureKind

ClassName = tuple[str, str]
"""The top-level package of a class, and the name of the class."""

TRANSIENT: Final = Failure(kind=FailureKind.TRANSIENT)
TIMED_OUT: Final = Failure(kind=FailureKind.TRANSIENT, timed_out=True)
THROTTLED: Final = Failure(kind=FailureKind.THROTTLED)
MISCONFIGURED: Final = Failure(kind=FailureKind.MISCONFIGURED)
REJECTED: Final = Failure(kind=FailureKind.REJECTED)
INVALID_OUTPUT: Final = Failure(kind=FailureKind.INVALID_OUTPUT)
CANCELLED: Final = Failure(kind=FailureKind.CANCELLED)
BROKEN: Final = Failure(kind=FailureKind.BROKEN)

_PYTHON: Final[Mapping[ClassName, Failure]] = {
    ("builtins", "ConnectionError"): TRANSIENT,
    ("builtins", "TimeoutError"): TIMED_OUT,
    ("socket", "gaierror"): TRANSIENT,
    ("ssl", "SSLCertVerificationError"): MISCONFIGURED,
    ("ssl", "SSLError"): TRANSIENT,
    # What an attempt decodes is the provider's answer. The OpenAI and Anthropic clients let this one through.
    ("json", "JSONDecodeError"): TRANSIENT,
    ("asyncio", "CancelledError"): CANCELLED,
    ("concurrent", "CancelledError"): CANCELLED,
}

_HTTPX: Final[Mapping[str, Failure]] = {
    "RequestError": TRANSIENT,
    "TimeoutException": TIMED_OUT,
    "UnsupportedProtocol": MISCONFIGURED,
    "LocalProtocolError": MISCONFIGURED,
    "InvalidURL": MISCONFIGURED,
    "TooManyRedirects": MISCONFIGURED,
}

_AIOHTTP: Final[Mapping[str, Failure]] = {
    "ClientConnectionError": TRANSIENT,
    "ServerTimeoutError": TIMED_OUT,
    "ClientConnectorCertificateError": MISCONFIGURED,
    "ServerFingerprintMismatch": MISCONFIGURED,
    "ClientPayloadError": TRANSIENT,
    "UploadAbortedError": TRANSIENT,
    "InvalidURL": MISCONFIGURED,
    "NonHttpUrlClientError": MISCONFIGURED,
    "RedirectClientError": MISCONFIGURED,
    "TooManyRedirects": MISCONFIGURED,
}

_REQUESTS: Final[Mapping[str, Failure]] = {
    "ConnectionError": TRANSIENT,
    "ConnectTimeout": TIMED_OUT,
    "Timeout": TIMED_OUT,
    "ChunkedEncodingError": TRANSIENT,
    "ContentDecodingError": TRANSIENT,
    "JSONDecodeError": TRANSIENT,
    "RetryError": TRANSIENT,
    "InvalidJSONError": REJECTED,
    "InvalidHeader": MISCONFIGURED,
    "InvalidSchema": MISCONFIGURED,
    "InvalidURL": MISCONFIGURED,
    "MissingSchema": MISCONFIGURED,
    "URLRequired": MISCONFIGURED,
    "TooManyRedirects": MISCONFIGURED,
}

# Below requests and botocore. Event streams of botocore raise these as they are.
_URLLIB3: Final[Mapping[str, Failure]] = {
    "HTTPError": TRANSIENT,
    "TimeoutError": TIMED_OUT,
    # A refused connection; urllib3 derives it from its connect timeout.
    "NewConnectionError": TRANSIENT,
    "LocationValueError": MISCONFIGURED,
}

_SDK: Final[Mapping[str, Failure]] = {
    "APIConnectionError": TRANSIENT,
    "APITimeoutError": TIMED_OUT,
    "APIResponseValidationError": TRANSIENT,
}

_OPENAI: Final[Mapping[str, Failure]] = {
    **_SDK,
    # The bare base class says that the client cannot work as set up: no key, no region, no token.
    "OpenAIError": MISCONFIGURED,
    "OAuthError": MISCONFIGURED,
    "LengthFinishReasonError": INVALID_OUTPUT,
    "ContentFilterFinishReasonError": REJECTED,
    "WebSocketConnectionClosedError": TRANSIENT,
    "WebSocketQueueFullError": BROKEN,
}

_ANTHROPIC: Final[Mapping[str, Failure]] = {
    **_SDK,
    "AnthropicError": MISCONFIGURED,
    "RetryableError": TRANSIENT,
    "APIWebhookValidationError": BROKEN,
}

_BOTOCORE: Final[Mapping[str, Failure]] = {
    **dict.fromkeys(("ReadTimeoutError", "ConnectTimeoutError"), TIMED_OUT),
    **dict.fromkeys(
        (
            "ConnectionError",
            "HTTPClientError",
            "IncompleteReadError",
            "ChecksumError",
            "FlexibleChecksumError",
            "ParserError",
            "ResponseParserError",
        ),
        TRANSIENT,
    ),
    # The client's own rate limiter, in its adaptive retry mode.
    "CapacityNotAvailableError": THROTTLED,
    **dict.fromkeys(("ParamValidationError", "MissingParametersError", "ValidationError"), REJECTED),
    # Credentials.
    **dict.fromkeys(
        (
            "NoCredentialsError",
            "PartialCredentialsError",
            "CredentialRetrievalError",
            "UnknownCredentialError",
            "NoAuthTokenError",
            "TokenRetrievalError",
            "UnknownTokenProviderError",
            "RefreshWithMFAUnsupportedError",
            "MetadataRetrievalError",
            "SSOError",
            "LoginError",
            "UnknownSignatureVersionError",
            "UnsupportedSignatureVersionError",
        ),
        MISCONFIGURED,
    ),
    # Region and endpoint.
    **dict.fromkeys(
        (
            "BaseEndpointResolverError",
            "EndpointProviderError",
            "InvalidEndpointConfigurationError",
            "InvalidEndpointDiscoveryConfigurationError",
            "InvalidIMDSEndpointError",
            "InvalidIMDSEndpointModeError",
            "InvalidRegionError",
            "InvalidSTSRegionalEndpointsConfigError",
            "ServiceNotInRegionError",
            "UnknownRegionError",
        ),
        MISCONFIGURED,
    ),
    # Configuration and installation.
    **dict.fromkeys(
        (
            "ApiVersionNotFoundError",
            "ConfigNotFound",
            "ConfigParseError",
            "DataNotFoundError",
            "InvalidChecksumConfigError",
            "InvalidConfigError",
            "InvalidDefaultsMode",
            "InvalidProxiesConfigError",
            "InvalidRetryConfigurationError",
            "MissingDependencyException",
            "ProfileNotFound",
            "UnsupportedServiceProtocolsError",
        ),
        MISCONFIGURED,
    ),
}

_BY_LIBRARY: Final[Mapping[str, Mapping[str, Failure]]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "aiohttp": _AIOHTTP,
    "requests": _REQUESTS,
    "urllib3": _URLLIB3,
    "openai": _OPENAI,
    "anthropic": _ANTHROPIC,
    "botocore": _BOTOCORE,
}

MEANINGS: Final[Mapping[ClassName, Failure]] = {
    **_PYTHON,
    **{(library, name): meaning for library, table in _BY_LIBRARY.items() for name, meaning in table.items()},
}

# Connection errors that hide a refused certificate, a senseless URL or a timeout one or more causes further down.
WRAPPERS: Final[frozenset[ClassName]] = frozenset(
    {
        ("httpx", "ConnectError"),
        ("httpx2", "ConnectError"),
        ("httpcore", "ConnectError"),
        ("httpcore2", "ConnectError"),
        ("openai", "APIConnectionError"),
        ("anthropic", "APIConnectionError"),
        ("requests", "ConnectionError"),
        ("urllib3", "MaxRetryError"),
        ("urllib3", "SSLError"),
        ("botocore", "SSLError"),
        ("botocore", "HTTPClientError"),
    }
)
