"""What an entry of a list means, and which entries are refused because they would mean something else."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.reach import Reach, parse_place


def test_names_and_ports_are_meant_exactly() -> None:
    reach = Reach(["pypi.org", "PyPI.org:80", "*.example.org:443", "mirror.lan:3128 private"])
    assert reach.ports == (80, 443, 3128)
    assert reach.named("pypi.org", 443) and reach.named("pypi.org", 80) and not reach.named("pypi.org", 22)
    assert reach.named("a.b.example.org", 443) and not reach.named("example.org", 443)
    for other in ("xpypi.org", "pypi.org.evil.test", "org", "", "notexample.org", "mirror.lan.evil.test"):
        assert not reach.knows(other)
    found = reach.named("mirror.lan", 3128)
    assert found and found.private and not parse_place("mirror.lan:3128").private


def test_addresses_are_meant_as_they_are_and_never_by_a_name() -> None:
    reach = Reach(["192.0.2.7:8080", "[2001:db8::1]", "10.1.0.0/16:80", "[fd00::/8]:81", "localhost:82"])
    for address, port in (
        ("192.0.2.7", 8080), ("2001:db8::1", 443), ("10.1.255.1", 80), ("fd00::5", 81), ("127.0.0.1", 82), ("::1", 82)
    ):  # fmt: skip
        assert reach.holds(ip_address(address), port)
        assert not reach.holds(ip_address(address), port + 1)
        assert not reach.knows(address)
    assert not reach.holds(ip_address("10.2.0.1"), 80) and not reach.holds(ip_address("127.0.0.2"), 82)


def test_a_private_entry_is_preferred_where_two_name_a_host() -> None:
    found = Reach(["*.a.test:1", "x.a.test:1 private"]).named("x.a.test", 1)
    assert found is not None and found.private


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("", "no place"),
        ("a.test b.test", "no place"),
        ("a.test:443 secret", "no place"),
        ("a.test:", "no port"),
        ("a.test:0", "no port"),
        ("a.test:65536", "no port"),
        ("a.test:https", "no port"),
        ("a.test:٤٤٣", "no port"),
        ("a.test:53", "name servers"),
        ("https://a.test", "no port|no form"),
        ("a.test/path", "no address"),
        ("2001:db8::1", "brackets"),
        ("[2001:db8::1", "no form"),
        ("[2001:db8::1]443", "no form"),
        ("[192.0.2.1]:1", "brackets"),
        ("[a.test]:1", "no address"),
        ("10.0.0.1/8:80", "beyond its mask: 10.0.0.0/8"),
        ("198.18.0.5:80", "inside a sandbox"),
        ("0.0.0.0/0:80", "inside a sandbox"),
        ("192.0.2.1:80 private", "said of names"),
        ("2130706433:80", "in disguise"),
        ("127.1:80", "in disguise"),
        ("0x7f.0x1:80", "in disguise"),
        ("*", "no name"),
        ("*.org", "top-level"),
        ("a.*.test", "no name"),
        ("*a.test", "no name"),
        ("-a.test", "no name"),
        ("a..test", "no name"),
        ("a.test.", "no name"),
        ("user@a.test", "no name"),
        ("é.test", "no name"),
        (f"{'a' * 64}.test", "no name"),
    ],
)
def test_what_would_mean_something_else_is_refused(entry: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_place(entry)


@given(st.text(max_size=40))
def test_an_entry_is_read_or_refused(text: str) -> None:
    try:
        place = parse_place(text)
    except ValueError:
        return
    assert bool(place.name) != bool(place.networks) and 0 < place.port < 65536
