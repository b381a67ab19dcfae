"""What an upstream on Bedrock can be told, as one checked record. Knows names and shapes; asks AWS nothing."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.core.problems import Review
from headgate.core.spelling import unknown_key
from headgate.transport.endpoint import render_headers, split_url
from headgate.transport.errors import HeaderRefused, UrlRefused

MISSING_EXTRA: Final = "bedrock needs its extra: pip install 'headgate[bedrock]'"
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d{1,2}")
_REGION_NAMES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SIGNED_BY_US: Final = frozenset(
    {
        "accept",
        "authorization",
        "content-type",
        "date",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
    }
)


@dataclass(frozen=True, kw_only=True)
class BedrockOptions:
    """Without keys or a profile, credentials come from where AWS's own tools look for them."""

    region: str
    """Where the model is called, and what requests are signed for."""
    profile: str | None = None
    """A profile of ~/.aws/config."""
    base_url: str | None = None
    """Another endpoint than the region's public one: a VPC endpoint, a proxy, a test."""
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, and signed."""
    ca_file: str | None = None
    """The authorities the endpoint's certificate is checked with; the transport is made with it."""
    additional_fields: Mapping[str, Any] = field(default_factory=dict)
    """Goes into `additionalModelRequestFields` of every chat; a request's own fields come on top."""

    def __post_init__(self) -> None:
        review = Review()
        _check_region(review, self.region)
        for name in ("profile", "base_url", "ca_file"):
            _check_text(review, name, getattr(self, name))
        self._check_keys(review)
        self._check_base_url(review)
        if isinstance(self.ca_file, str) and self.ca_file and not Path(self.ca_file).is_file():
            review.add("ca_file", f"there is no file {self.ca_file!r}")
        _check_headers(review, self.headers)
        _check_fields(review, self.additional_fields)
        review.refuse()

    @property
    def url(self) -> str:
        """The endpoint, without a slash at its end."""
        return (self.base_url or f"https://bedrock-runtime.{self.region}.amazonaws.com").rstrip("/")

    def _check_keys(self, review: Review) -> None:
        names = ("access_key_id", "secret_access_key", "session_token")
        for name in names:
            _check_text(review, name, getattr(self, name), secret=True)
        key, secret, token = (getattr(self, name) for name in names)
        if (key is None) != (secret is None):
            missing = "access_key_id" if key is None else "secret_access_key"
            review.add(missing, "is missing; a key id and its secret belong together")
        if token is not None and key is None and secret is None:
            review.add("session_token", "needs access_key_id and secret_access_key")
        if key is not None and self.profile is not None:
            review.add("profile", "cannot be used together with access_key_id; leave one of them out")

    def _check_base_url(self, review: Review) -> None:
        if not isinstance(self.base_url, str) or not self.base_url:
            return
        try:
            _, target = split_url(self.base_url)
        except UrlRefused as error:
            review.add("base_url", str(error))
            return
        if "?" in target or "#" in self.base_url:
            review.add("base_url", "must end before any '?' or '#'")


def _check_region(review: Review, region: object) -> None:
    if not region:
        review.add("region", "is missing; give one, such as us-east-1, or set AWS_REGION")
    elif not isinstance(region, str) or _REGION.fullmatch(region) is None:
        review.add("region", f"must be the name of a region, such as us-east-1, not {region!r}")


def _check_text(review: Review, name: str, value: object, *, secret: bool = False) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        review.add(name, "must be text" if secret else f"must be text, not {value!r}")
    elif not value.strip():
        review.add(name, "is empty; give a value or leave it out")
    elif secret and (value != value.strip() or not value.isascii() or not value.isprintable()):
        review.add(name, "holds a space, a line break or another odd character at its end or inside")


def _check_headers(review: Review, headers: object) -> None:
    if not isinstance(headers, Mapping):
        review.add("headers", "must map header names to texts")
        return
    for name, value in headers.items():
        path = f"headers.{name}"
        if not isinstance(name, str) or not isinstance(value, str) or not (name + value).isascii():
            review.add(path, "must be plain ASCII text")
        elif name.lower() in _SIGNED_BY_US:
            review.add(path, "is written by the provider itself; leave it out")
        else:
            try:
                render_headers([(name.encode(), value.encode())])
            except HeaderRefused as error:
                review.add(path, str(error))


def _check_fields(review: Review, given: object) -> None:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        review.add("additional_fields", "must map names to JSON values")
        return
    try:
        msgspec.json.encode(dict(given))
    except (TypeError, RecursionError):
        review.add("additional_fields", "must hold nothing but JSON values")


_OPTIONS: Final = frozenset(option.name for option in fields(BedrockOptions))


def options_for(given: Mapping[str, Any], *, env: Mapping[str, str]) -> BedrockOptions:
    """The options of one upstream. The region may come from the environment; all mistakes are told together."""
    review = Review()
    # Looked for, not imported: that takes half a second.
    if importlib.util.find_spec("botocore") is None:
        review.add("provider", MISSING_EXTRA)
    for name in given:
        if name not in _OPTIONS:
            review.add(str(name), unknown_key(str(name), _OPTIONS))
    review.refuse()
    region = next((env[name] for name in _REGION_NAMES if env.get(name)), "")
    return BedrockOptions(**{"region": region, **given})
