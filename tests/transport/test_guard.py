"""The addresses nobody from outside may be led to, whatever form they come in."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.transport.guard import why_host_refused, why_refused

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "168.63.129.15",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.0.3.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2620:4f:7fff::1",
    "2a00:1450:4001:81b::200e",
    "3ffe::1",
]
PRIVATE = [
    "10.0.0.0",
    "10.255.255.255",
    "100.64.0.0",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.255",
    "172.16.0.0",
    "172.31.255.255",
    "192.168.0.0",
    "192.168.255.255",
    "::1",
    "fc00::",
    "fd12:3456::1",
    "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
]
NEVER = [
    # Unspecified, this network, broadcast, reserved, multicast.
    "0.0.0.0",
    "0.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "::",
    "ff02::1",
    "ff0e::1",
    # Link-local and site-local.
    "169.254.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fec0::1",
    "feff::1",
    # Metadata services of clouds.
    "169.254.169.254",
    "169.254.170.2",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    # Reserved for protocols, documentation, benchmarks.
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",
    "192.175.48.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "2001:db8::1",
    "3fff::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2620:4f:8000::1",
    "100::1",
    "5f00::1",
    "4000::1",
    "e000::1",
    # An IPv4 address inside: mapped, translated, compatible, NAT64, 6to4, Teredo, ISATAP.
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "::127.0.0.1",
    "::10.0.0.1",
    "::2",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::10.0.0.1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:0a00:0001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001::1",
    "2a00:1450::5efe:7f00:1",
    "2a00:1450::200:5efe:10.0.0.1",
    # Zones and things that are no addresses.
    "2a00:1450::1%eth0",
    "",
    "localhost",
    "127.1",
    "0x7f000001",
    "2130706433",
    "010.0.0.1",
    "1.2.3.4/32",
    "１.1.1.1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_the_internet_may_be_asked(address: str) -> None:
    assert why_refused(address) is None
    assert why_refused(address, allow_private=True) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_intranets_may_be_asked_only_when_allowed(address: str) -> None:
    assert why_refused(address) is not None
    assert why_refused(address, allow_private=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_the_rest_is_never_asked(address: str) -> None:
    assert why_refused(address) is not None
    assert why_refused(address, allow_private=True) is not None


@given(st.integers(0, 2**32 - 1))
def test_what_python_calls_not_global_is_refused(number: int) -> None:
    """Our table may be stricter than the standard library's, never laxer."""
    address = ipaddress.IPv4Address(number)
    if not address.is_global or address.is_multicast:
        assert why_refused(str(address)) is not None


@given(st.integers(0, 2**128 - 1))
def test_what_python_calls_not_global_is_refused_in_ipv6_too(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    if not address.is_global or address.is_multicast:
        assert why_refused(str(address)) is not None


@given(st.integers(0, 2**32 - 1), st.sampled_from(["::ffff:", "::", "64:ff9b::", "::ffff:0:"]))
def test_no_form_with_an_ipv4_address_inside_gets_through(number: int, prefix: str) -> None:
    address = f"{prefix}{ipaddress.IPv4Address(number)}"
    assert why_refused(address) is not None
    if address != "::0.0.0.1":  # Another spelling of ::1.
        assert why_refused(address, allow_private=True) is not None


@pytest.mark.parametrize(
    "host", ["localhost", "hooks.localhost", "127.0.0.1", "10.1.2.3", "::1", "169.254.169.254"]
)
def test_a_host_that_is_an_address_can_be_refused_without_looking_it_up(host: str) -> None:
    assert why_host_refused(host) is not None


@pytest.mark.parametrize("host", ["example.com", "127.1", "8.8.8.8", "localhost.example"])
def test_a_name_is_judged_by_where_it_leads_and_not_before(host: str) -> None:
    assert why_host_refused(host) is None


def test_private_hosts_can_be_allowed_but_metadata_services_never() -> None:
    assert why_host_refused("localhost", allow_private=True) is None
    assert why_host_refused("169.254.169.254", allow_private=True) is not None
