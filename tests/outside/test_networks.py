"""Which addresses may be connected to."""

from ipaddress import ip_network

import pytest

from agentstate.outside.networks import Forbidden, check, may_reach

PRIVATE = (
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1",
    "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1",
    "::127.0.0.1", "fec0::1", "4000::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "64:ff9b::7f00:1", "2002:7f00:1::",
)  # fmt: skip
PUBLIC = ("93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1")


@pytest.mark.parametrize("address", PRIVATE)
def test_what_only_this_machine_can_reach_is_not_reached(address):
    assert not may_reach(address, ())
    with pytest.raises(Forbidden, match="AGENTSTATE_DELIVERY_NETWORKS"):
        check(address, ())


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is(address):
    assert may_reach(address, ())


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "1.1.1"])
def test_what_is_no_address_is_not_reached(text):
    assert not may_reach(text, ())
    assert not may_reach(text, (ip_network("0.0.0.0/0"),))


def test_a_site_may_allow_its_own_networks_and_no_others():
    allowed = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert may_reach("10.1.2.3", allowed)
    assert may_reach("::ffff:10.1.2.3", allowed)
    assert may_reach("fd12::1", allowed)
    assert not may_reach("127.0.0.1", allowed)
    assert not may_reach("fe80::1", allowed)
