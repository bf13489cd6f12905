"""The range that is picked meets nothing, and lanes have addresses of their own in it."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.errors import CapabilityMissing
from axern.host.address_range import PREFIX, address_of, choose, collision, gateway_of
from ledger.reservation import LANES

NETWORKS = st.builds(
    lambda address, prefix: IPv4Network((address, prefix), strict=False),
    st.integers(10 << 24 | 192 << 16, 10 << 24 | 255 << 16 | 0xFFFF),
    st.integers(16, 32),
)


@given(st.lists(NETWORKS, max_size=12))
def test_what_is_picked_meets_nothing_and_is_private(used: list[IPv4Network]) -> None:
    taken = tuple((each, "somebody") for each in used)
    picked = choose(taken)
    assert picked.prefixlen == PREFIX
    assert picked.is_private
    assert not any(picked.overlaps(each) for each in used)


def test_lanes_and_gateway_have_an_address_each_within_the_range() -> None:
    addresses = IPv4Network("10.192.0.0/19")
    every = {gateway_of(addresses), *(address_of(addresses, lane) for lane in range(LANES))}
    assert len(every) == LANES + 1
    assert every <= set(addresses.hosts())
    for lane in (-1, LANES):
        with pytest.raises(ValueError, match=rf"lane {lane} is not in 0\.\.4095"):
            address_of(addresses, lane)


def test_a_full_host_and_a_range_that_meets_another_are_refused() -> None:
    everything = ((IPv4Network("10.0.0.0/8"), "eth0"),)
    with pytest.raises(CapabilityMissing, match=r"each /19 of 10\.192\.0\.0/10 meets a route"):
        choose(everything)
    with pytest.raises(CapabilityMissing, match=r"10\.0\.0\.0/8 of eth0"):
        choose(everything, "10.9.0.0/19")
    assert choose(everything, "192.168.96.0/19") == IPv4Network("192.168.96.0/19")
    assert collision(IPv4Network("172.17.0.0/16"), everything) is None
