"""Where an upstream is and which headers it wants: the options that all HTTP providers share, and their checks.

Messages name the option, never a value that may be a secret.
"""

import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headgate.core.errors import SettingsError
from headgate.core.problems import Review
from headgate.core.spelling import did_you_mean
from headgate.transport import Endpoint, TransportError
from headgate.transport.connecting import tls_context
from headgate.transport.endpoint import render_headers, split_url

_SPACE_OR_CONTROL: Final = re.compile(r"[\s\x00-\x1f\x7f]")


def check_names(provider: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options the provider does not have, all of them together."""
    names = sorted(known)
    review = Review()
    for name in given:
        if name not in names:
            near = did_you_mean(str(name), names) or ";"
            review.add(str(name), f"is no option of provider {provider}{near} known: {', '.join(names)}")
    review.refuse()


def check_base_url(review: Review, value: object) -> None:
    if not isinstance(value, str) or not value:
        review.add("base_url", "must be a URL such as http://127.0.0.1:8000")
        return
    try:
        split_url(value)
    except TransportError as error:
        review.add("base_url", f"cannot be used: {error.failure.message}")
        return
    if "?" in value or "#" in value:
        review.add("base_url", "must end with its path: what comes after a ? or # belongs elsewhere")


def check_secret(review: Review, name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        review.add(name, "must be a text that is not empty")
    elif _SPACE_OR_CONTROL.search(value) or not value.isascii():
        review.add(name, "holds a space, a line break or another character that no key has; copy it again")


def check_headers(review: Review, value: object) -> None:
    if not _are_texts(review, "headers", value):
        return
    try:
        render_headers(raw_headers(value))
    except TransportError as error:
        review.add("headers", error.failure.message)
    except UnicodeEncodeError:
        review.add("headers", "hold a character that no header may hold")


def check_query(review: Review, value: object) -> None:
    _are_texts(review, "query", value)


def check_ca_file(review: Review, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        review.add("ca_file", "must be the path of a PEM file")
        return
    try:
        tls_context(value)
    except SettingsError as error:
        review.add("ca_file", str(error).removeprefix("ca_file "))


def raw_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def endpoint_of(
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    method: str = "POST",
) -> Endpoint:
    """The prepared endpoint below the base URL."""
    url = base_url.rstrip("/") + path
    if query:
        url += "?" + urllib.parse.urlencode(query)
    return Endpoint(url, method=method, headers=raw_headers(headers))


def with_headers(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The provider's headers with the operator's on top, whatever their case."""
    return {**own, **{name.lower(): value for name, value in given.items()}}


def _are_texts(review: Review, name: str, value: object) -> bool:
    if not isinstance(value, Mapping):
        review.add(name, "must map names to texts")
        return False
    wrong = [key for key, text in value.items() if not isinstance(key, str) or not isinstance(text, str)]
    for key in wrong:
        review.add(f"{name}.{key}", "must be a text; put quotes around a number")
    return not wrong
