"""May a URL given by a stranger lead to this address? A table and a pure function; resolves and connects nothing.

`ipaddress.is_global` is not enough: depending on the version of Python it passes NAT64, 6to4 and IPv4-compatible
forms of private addresses, multicast, site-local and cloud metadata addresses. So IPv4 is a list of refusals, and
IPv6 is refused unless it is plain global unicast. Forms that carry an IPv4 address inside are refused as such: who
routes them decides where they lead.
"""

import ipaddress
from typing import Final, NamedTuple

_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Range(NamedTuple):
    network: _IPNetwork
    why: str
    private: bool = False
    """An intranet: reachable with `allow_private`."""


def _range(network: str, why: str, *, private: bool = False) -> _Range:
    return _Range(ipaddress.ip_network(network), why, private)


# The first match decides, so the narrow ranges stand before the wide ones.
_IPV4: Final = (
    _range("0.0.0.0/32", "the unspecified address"),
    _range("0.0.0.0/8", "this network"),
    _range("10.0.0.0/8", "a private network", private=True),
    _range("100.100.100.200/32", "a cloud's metadata service"),
    _range("100.64.0.0/10", "shared provider space (CGNAT)", private=True),
    _range("127.0.0.0/8", "this machine", private=True),
    _range("168.63.129.16/32", "a cloud's metadata service"),
    _range("169.254.0.0/16", "link-local, where clouds keep their metadata"),
    _range("172.16.0.0/12", "a private network", private=True),
    _range("192.0.0.0/24", "reserved for protocols"),
    _range("192.0.2.0/24", "reserved for documentation"),
    _range("192.31.196.0/24", "reserved (AS112)"),
    _range("192.52.193.0/24", "reserved (AMT)"),
    _range("192.88.99.0/24", "a 6to4 relay"),
    _range("192.168.0.0/16", "a private network", private=True),
    _range("192.175.48.0/24", "reserved (AS112)"),
    _range("198.18.0.0/15", "reserved for benchmarks"),
    _range("198.51.100.0/24", "reserved for documentation"),
    _range("203.0.113.0/24", "reserved for documentation"),
    _range("224.0.0.0/4", "multicast"),
    _range("240.0.0.0/4", "reserved"),
)
_IPV6: Final = (
    _range("::/128", "the unspecified address"),
    _range("::1/128", "this machine", private=True),
    _range("::ffff:0:0/96", "an IPv4-mapped address"),
    _range("::ffff:0:0:0/96", "an IPv4-translated address"),
    _range("::/96", "an IPv4-compatible address"),
    _range("64:ff9b::/96", "an IPv4 address behind NAT64"),
    _range("64:ff9b:1::/48", "an IPv4 address behind NAT64"),
    _range("2001::/32", "an IPv4 address behind Teredo"),
    _range("2001::/23", "reserved for protocols"),
    _range("2001:db8::/32", "reserved for documentation"),
    _range("2002::/16", "an IPv4 address behind 6to4"),
    _range("2620:4f:8000::/48", "reserved (AS112)"),
    _range("3fff::/20", "reserved for documentation"),
    _range("fd00:ec2::/32", "a cloud's metadata service"),
    _range("fd20:ce::/32", "a cloud's metadata service"),
    _range("fc00::/7", "a private network", private=True),
    _range("fe80::/10", "link-local"),
    _range("fec0::/10", "site-local"),
    _range("ff00::/8", "multicast"),
)
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
# ISATAP hides an IPv4 address behind 0:5efe or 200:5efe in the lower half of any prefix.
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})


def why_refused(address: str, *, allow_private: bool = False) -> str | None:
    """Why nobody from outside may be led to this address, or None. What is no address is refused, too."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "no IP address"
    known = next((entry for entry in _ranges(parsed) if parsed in entry.network), None)
    if known is not None:
        return None if known.private and allow_private else known.why
    if isinstance(parsed, ipaddress.IPv6Address):
        return _why_refused_ipv6(parsed)
    return None


def why_host_refused(host: str, *, allow_private: bool = False) -> str | None:
    """The same of a URL's host, as far as it is written as an address. A name is judged by where it leads, then."""
    if host == "localhost" or host.endswith(".localhost"):
        host = "127.0.0.1"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return why_refused(host, allow_private=allow_private)


def _ranges(address: _IPAddress) -> tuple[_Range, ...]:
    return _IPV4 if address.version == 4 else _IPV6


def _why_refused_ipv6(address: ipaddress.IPv6Address) -> str | None:
    if address.scope_id is not None:
        return "an address with a zone"
    if address not in _GLOBAL_UNICAST:
        return "outside of the global internet"
    if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return "an IPv4 address behind ISATAP"
    return None
