"""One spelling for one address: what means nothing is evened out, what means something is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate
from headgate.apps.bookmarks.address import canonical


@pytest.mark.parametrize(
    ("given_url", "kept"),
    [
        ("HTTP://EXAMPLE.ORG", "http://example.org/"),
        ("  https://example.org/a \n", "https://example.org/a"),
        ("https://Example.org/Path/CASE?Q=Up", "https://example.org/Path/CASE?Q=Up"),
        ("https://example.org:443/", "https://example.org/"),
        ("http://example.org:80/", "http://example.org/"),
        ("http://example.org:443/", "http://example.org:443/"),
        ("https://example.org:/", "https://example.org/"),
        ("https://example.org./a", "https://example.org/a"),
        ("https://example.org/a#part", "https://example.org/a"),
        ("https://example.org/a?", "https://example.org/a"),
        ("https://bücher.example/ä?ö=ü", "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC"),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example/"),
        ("https://例え.jp/パス", "https://xn--r8jz45g.jp/%E3%83%91%E3%82%B9"),
        ("https://example.org/%e3%81%82", "https://example.org/%E3%81%82"),
        ("https://example.org/a b", "https://example.org/a%20b"),
        ("https://example.org/100%", "https://example.org/100%"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
        ("http://127.1/", "http://127.1/"),
    ],
)
def test_an_address_is_kept_in_one_spelling(given_url: str, kept: str) -> None:
    assert canonical(given_url) == kept


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must begin with"),
        ("example.org", "must begin with"),
        ("ftp://example.org/", "must begin with"),
        ("javascript:alert(1)", "must begin with"),
        ("file:///etc/passwd", "must begin with"),
        ("data:text/html,hi", "must begin with"),
        ("http://", "names no host"),
        ("http:///path", "names no host"),
        ("http://user:pass@example.org/", "user name or password"),
        ("http://a@b@c/", "user name or password"),
        ("http://example.org:99999/", "cannot be read"),
        ("http://example.org:x/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("http://[::1%25eth0]/", "no IPv6 address"),
        ("http://ex ample.org/", "no host name"),
        ("http://exa\nmple.org/", "control character"),
        ("http://example.org\\@evil.example/", "backslash"),
        ("http://" + "a" * 64 + ".example/", "no host name"),
        ("http://" + "ü" * 70 + ".example/", "no host name"),
        ("http://..example/", "no host name"),
        ("https://example.org/\ud800", "cannot be read"),
        ("https://example.org/" + "a" * 2000, "at most 2,000"),
        ("https://example.org/" + "€" * 1000, "at most 4,000"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(headgate.InvalidRequest, match=why) as caught:
        canonical(url)
    assert caught.value.param == "url"


URLS = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["http://", "HTTPS://", "https:", "//", "", "http://["]),
    st.text(max_size=20),
    st.sampled_from(["", ":80", ":443", ":", "]", "@", ".", ":99999999999"]),
    st.text(max_size=20),
    st.sampled_from(["", "#a", "?b", "%", "%zz", "\x00"]),
)


@given(URLS)
def test_every_text_is_an_address_or_refused_and_one_spelling_is_enough(url: str) -> None:
    """Nothing else is ever raised: an address can never be answered with 500."""
    try:
        kept = canonical(url)
    except headgate.InvalidRequest:
        return
    assert kept.isascii()
    assert canonical(kept) == kept
