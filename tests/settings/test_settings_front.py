"""Where the server listens and what it puts up with."""

import pytest
from settings.settings_stage import loaded, mistakes_in

from headgate.core.problems import InvalidSettings
from headgate.settings import Address, Limits, Settings


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8400", Address("127.0.0.1", 8400)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("localhost:80", Address("localhost", 80)),
        ("gate-1.example.org:65535", Address("gate-1.example.org", 65535)),
        ('"[::1]:8400"', Address("::1", 8400)),
        ('"[::]:0"', Address("::", 0)),
        ('"[0:0:0:0:0:0:0:1]:1"', Address("::1", 1)),
        ('"[fe80::1%eth0]:1"', Address("fe80::1%eth0", 1)),
    ],
)
def test_an_address_and_a_port(listen: str, address: Address) -> None:
    assert loaded(f"listen: {listen}").address == address


def test_without_a_word_only_this_machine_can_call() -> None:
    assert loaded("").address == Address("127.0.0.1", 8400)


@pytest.mark.parametrize(
    ("listen", "mistake"),
    [
        ("18303", "must be an address and a port: write 127.0.0.1:18303, or 0.0.0.0:18303 for all addresses"),
        (
            "'18303'",
            "must be an address and a port: write 127.0.0.1:18303, or 0.0.0.0:18303 for all addresses",
        ),
        ("99999", "must be an address and a port, such as '127.0.0.1:8400' or '[::1]:8400', not '99999'"),
        ("true", "must be text, not true: quote it"),
        ("[1]", "must be text, not a list"),
        (
            "localhost",
            "must be an address and a port, such as '127.0.0.1:8400' or '[::1]:8400', not 'localhost'",
        ),
        ('""', "must be an address and a port, such as '127.0.0.1:8400' or '[::1]:8400', not ''"),
        ('":8400"', "must name an address in front of the port: '127.0.0.1', or '0.0.0.0' for all of them"),
        ('"::1:8400"', "must have an IPv6 address in brackets, such as '[::1]:8400', not '::1:8400'"),
        ('"[::1]"', "must be an address and a port, such as '127.0.0.1:8400' or '[::1]:8400', not '[::1]'"),
        ('"[1.2.3.4]:1"', "must have an IPv6 address between its brackets, not '1.2.3.4'"),
        ('"[]:1"', "must have an IPv6 address between its brackets, not ''"),
        ("localhost:65536", "must have a port of at most 65535, not 65536"),
        ("127.1:80", "must have an address such as 127.0.0.1, not '127.1'"),
        ("256.0.0.1:80", "must have an address such as 127.0.0.1, not '256.0.0.1'"),
        ('"local host:80"', "must have an address or a host's name in front of the port, not 'local host'"),
        ('"-a:80"', "must have an address or a host's name in front of the port, not '-a'"),
        ('"ſ:80"', "must have an address or a host's name in front of the port, not 'ſ'"),
        ('"a\\nb:80"', "must have an address or a host's name in front of the port, not 'a\\nb'"),
        (
            "http://localhost:8400",
            "must have an IPv6 address in brackets, such as '[::1]:8400', not 'http://localhost:8400'",
        ),
    ],
)
def test_what_is_no_address_is_told_with_what_would_be(listen: str, mistake: str) -> None:
    assert mistakes_in(f"listen: {listen}") == [f"listen: {mistake}"]


def test_an_override_may_be_an_ipv6_address_without_quotes() -> None:
    assert loaded("", {"HEADGATE__LISTEN": "[::1]:8400"}).address == Address("::1", 8400)
    wrong = mistakes_in("", {"HEADGATE__LISTEN": "[::1]"})
    assert [line.rsplit(" (set by ")[1] for line in wrong] == ["HEADGATE__LISTEN)"]


def test_settings_in_code_are_checked_as_well() -> None:
    with pytest.raises(InvalidSettings, match="listen: must be an address and a port"):
        Settings(listen="here")


def test_limits_are_read_and_keep_their_defaults() -> None:
    assert loaded("limits: {body_bytes: 1000, drain_s: 0}").limits == Limits(body_bytes=1000, drain_s=0)


def test_every_limit_is_checked() -> None:
    text = "limits: {body_bytes: 0, file_bytes: 0, header_timeout_s: 0, body_timeout_s: 3601, drain_s: -1, connections: 1.5,"
    text += " waiting_bytes: 0, tenant_bytes: 0, min_free_bytes: -1, depth: 3}"
    known = "body_bytes, body_timeout_s, connections, drain_s, file_bytes, header_timeout_s, min_free_bytes, tenant_bytes, waiting_bytes"
    assert mistakes_in(text) == [
        "limits.body_bytes: must be at least 1, not 0",
        "limits.file_bytes: must be at least 1, not 0",
        "limits.header_timeout_s: must be more than 0, not 0",
        "limits.body_timeout_s: must be at most 3600, not 3601",
        "limits.drain_s: must be at least 0, not -1",
        "limits.connections: must be a whole number, not 1.5",
        "limits.waiting_bytes: must be at least 1, not 0",
        "limits.tenant_bytes: must be at least 1, not 0",
        "limits.min_free_bytes: must be at least 0, not -1",
        f"limits.depth: is no setting; known: {known}",
    ]


def test_a_model_may_ask_for_stream_rescue() -> None:
    settings = loaded("models: {m: {upstreams: [{provider: cloud}], stream_rescue: true}}")
    assert settings.models["m"].stream_rescue
    assert not settings.models["simulated"].stream_rescue
    assert mistakes_in("models: {m: {upstreams: [{provider: cloud}], stream_rescue: maybe}}") == [
        "models.m.stream_rescue: must be true or false, not 'maybe'"
    ]
