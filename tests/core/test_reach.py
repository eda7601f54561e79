"""A public name cannot lead the gateway, and the credentials it carries, to this machine or its network."""

import pytest

from gateway.core.reach import Reach, is_internal_name, unreachable

PUBLIC, PRIVATE, LOOPBACK = "93.184.215.14", "10.1.2.3", "127.0.0.1"
METADATA = (
    "169.254.169.254",
    "fe80::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3", "::1", "localhost", "payments", "pay.default.svc", "db.internal"]
)
@pytest.mark.parametrize("address", [PUBLIC, PRIVATE, LOOPBACK, "::1", "fc00::1"])
def test_an_address_or_internal_name_means_something_of_ones_own(host: str, address: str) -> None:
    """Local tools work without a switch."""
    assert is_internal_name(host)
    assert unreachable(host, address) is None


@pytest.mark.parametrize(
    "address",
    [PRIVATE, LOOPBACK, "192.168.0.1", "172.16.0.1", "100.64.0.1", "::1", "fc00::1", "::ffff:10.0.0.1", "2002:a00:1::"],
)
def test_a_public_name_leads_to_public_addresses_only(address: str) -> None:
    """DNS rebinding."""
    problem = unreachable("api.example.com", address)
    assert problem is not None
    assert address in problem
    assert unreachable("api.example.com", address, Reach.PRIVATE) is None


@pytest.mark.parametrize("reach", [Reach.AUTO, Reach.PUBLIC, Reach.PRIVATE])
@pytest.mark.parametrize("address", [*METADATA, "0.0.0.0", "::", "224.0.0.1"])
def test_metadata_is_reached_only_where_anything_is(address: str, reach: Reach) -> None:
    for host in ("api.example.com", "metadata.google.internal", address):
        assert unreachable(host, address, reach) is not None
        assert unreachable(host, address, Reach.ANY) is None


def test_public_means_public_also_for_internal_names() -> None:
    assert unreachable("localhost", LOOPBACK, Reach.PUBLIC) is not None
    assert unreachable("localhost", PUBLIC, Reach.PUBLIC) is None


def test_a_zone_does_not_hide_an_address() -> None:
    assert unreachable("tool", "fe80::1%eth0") is not None
