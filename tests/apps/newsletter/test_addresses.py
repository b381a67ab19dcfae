"""One page, one address: tracking goes, what a server can tell apart stays."""

import pytest

from headgate.apps.newsletter.addresses import canonical, domain_of, same_page


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("HTTPS://Example.COM/Path", "https://example.com/Path"),
        ("https://example.com:443/a#top", "https://example.com/a"),
        ("http://example.com:8080", "http://example.com:8080/"),
        ("https://example.com/a?utm_source=rss&id=7&fbclid=x", "https://example.com/a?id=7"),
        ("https://example.com/a?B=1&a=2", "https://example.com/a?B=1&a=2"),
        ("https://example.com/%7euser/%c3%a9", "https://example.com/~user/%C3%A9"),
        ("https://example.com/é", "https://example.com/%C3%A9"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example/x"),
        ("https://example.com./a", "https://example.com/a"),
        ("https://[2001:DB8::1]/x", "https://[2001:db8::1]/x"),
        (" https://example.com/a ", "https://example.com/a"),
    ],
)
def test_spellings_of_one_page_become_one(given: str, wanted: str) -> None:
    assert canonical(given) == wanted
    assert canonical(wanted) == wanted


def test_paths_that_differ_in_case_or_by_a_slash_stay_two() -> None:
    """Servers may tell them apart: lower-casing a path made dead links of good ones."""
    spellings = {canonical(f"https://example.com/{path}") for path in ("Path", "path", "path/")}
    assert len(spellings) == 3


def test_http_and_https_are_one_page() -> None:
    assert same_page("http://example.com/a") == same_page("https://example.com/a")
    assert domain_of("https://www.example.com/a") == "example.com"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "mailto:a@b.example",
        "javascript:alert(1)",
        "https://",
        "/a",
        "http://[::1",
        "http://a:x/",
        "http://a/\x1b",
        "http://a/" + "x" * 2000,
    ],
)
def test_what_is_no_page_has_no_address(given: str) -> None:
    assert canonical(given) is None
