"""What an upstream on Bedrock can be told, as one checked record. Knows names and shapes; asks AWS nothing."""

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec

from headgate.core.errors import SettingsError
from headgate.core.problems import Review
from headgate.providers.addresses import (
    check_base_url,
    check_ca_file,
    check_headers,
    check_names,
    check_secret,
)

MISSING_EXTRA: Final = str(SettingsError.missing_extra("bedrock", "bedrock"))
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d{1,2}")
_REGION_NAMES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEYS: Final = ("access_key_id", "secret_access_key", "session_token")
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        _check_profile(review, self.profile)
        self._check_keys(review)
        if self.base_url is not None:
            check_base_url(review, self.base_url)
        check_ca_file(review, self.ca_file)
        _check_headers(review, self.headers)
        _check_fields(review, self.additional_fields)
        review.refuse()

    @property
    def url(self) -> str:
        return self.base_url or f"https://bedrock-runtime.{self.region}.amazonaws.com"

    def _check_keys(self, review: Review) -> None:
        for name in _KEYS:
            check_secret(review, name, getattr(self, name))
        key, secret, token = (getattr(self, name) for name in _KEYS)
        if (key is None) != (secret is None):
            missing = "access_key_id" if key is None else "secret_access_key"
            review.add(missing, "is missing; a key id and its secret belong together")
        if token is not None and key is None and secret is None:
            review.add("session_token", "needs access_key_id and secret_access_key")
        if key is not None and self.profile is not None:
            review.add("profile", "cannot be used together with access_key_id; leave one of them out")


def _check_region(review: Review, region: object) -> None:
    if not region:
        review.add("region", "is missing; give one, such as us-east-1, or set AWS_REGION")
    elif not isinstance(region, str) or _REGION.fullmatch(region) is None:
        review.add("region", f"must be the name of a region, such as us-east-1, not {region!r}")


def _check_profile(review: Review, profile: object) -> None:
    if profile is not None and (not isinstance(profile, str) or not profile.strip()):
        review.add("profile", "must be the name of a profile, or left out")


def _check_headers(review: Review, headers: object) -> None:
    check_headers(review, headers)
    if isinstance(headers, Mapping):
        for name in headers:
            if str(name).lower() in _SIGNED_BY_US:
                review.add(f"headers.{name}", "is written by the provider itself; leave it out")


def _check_fields(review: Review, given: object) -> None:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        review.add("additional_fields", "must map names to JSON values")
        return
    try:
        msgspec.json.encode(dict(given))
    except (TypeError, ValueError, RecursionError):
        review.add("additional_fields", "must hold nothing but JSON values")


def read_options(given: Mapping[str, Any], *, env: Mapping[str, str] = os.environ) -> BedrockOptions:
    """The record out of an upstream's options; the region may come from the environment.

    Every mistake is in the one error raised.
    """
    check_names("bedrock", given, [option.name for option in fields(BedrockOptions)])
    # Looked for, not imported: that takes half a second.
    if importlib.util.find_spec("botocore") is None:
        review = Review()
        review.add("provider", MISSING_EXTRA)
        review.refuse()
    region = next((env[name] for name in _REGION_NAMES if env.get(name)), "")
    return BedrockOptions(**{"region": region, **given})
