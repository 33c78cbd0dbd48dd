"""Which addresses boxes may reach: public ones, private ones where the policy says so, and never where clouds serve
credentials."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.sandbox.egress.addresses import may_reach

PRIVATE = ["10.0.0.1", "127.0.0.1", "127.9.9.9", "172.16.0.1", "192.168.1.1", "::1", "fd00::1"]
PRIVATE += ["fd00::200:5efe:808:808", "2600::5efe:7f00:1", "2002:808:808::5efe:7f00:1"]
NEVER = [
    *("169.254.169.254", "224.0.0.1", "0.0.0.0", "0.1.2.3", "255.255.255.255", "240.0.0.1", "192.0.0.192", "192.0.0.9"),
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.9"),
    *("fe80::1", "fe80::1%eth0", "ff02::1", "::", "fec0::1", "fec0::1%eth0", "fd00:ec2::254", "fd20:ce::254"),
    *("64:ff9b:1::1", "64:ff9b:1::7f00:1", "100::1", "100:0:0:1::1", "5f00::1", "4000::1", "1::1", "2001:2::1"),
    *("fe80::5efe:808:808", "fd00:ec2::5efe:808:808", "ff02::200:5efe:808:808", "64:ff9b:1::5efe:808:808"),
    *("2001::7f00:1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:10::1", "2001:db8::1", "3fff::1", "64:ff9b:2::1"),
]
PUBLIC = ["1.1.1.1", "151.101.0.223", "2606:4700::1111", "2a00:1450:4001:830::200e", "2400:cb00:2048:1::c629:d7a2"]
EMBEDDINGS = ["::{}", "::ffff:{}", "::ffff:0:{}", "64:ff9b::{}", "2606:4700::5efe:{}", "2606:4700::200:5efe:{}"]


@pytest.mark.parametrize("address", [*PRIVATE, *NEVER])
def test_kept_from_boxes(address: str) -> None:
    assert not may_reach(address, private=False)


@pytest.mark.parametrize("address", NEVER)
def test_kept_from_boxes_whatever_the_policy(address: str) -> None:
    assert not may_reach(address, private=True)


@pytest.mark.parametrize("address", [*PRIVATE, *PUBLIC])
def test_open_to_boxes_where_the_policy_says_so(address: str) -> None:
    assert may_reach(address, private=True)


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert may_reach(address, private=False)


known = [ipaddress.IPv4Address(text) for text in (*PRIVATE, *NEVER, *PUBLIC) if ":" not in text]
addresses = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address) | st.sampled_from(known)


@given(addresses, st.booleans(), st.sampled_from([*EMBEDDINGS, "2002:{:x}:{:x}::1"]))
def test_an_address_inside_another_is_judged_as_itself(
    address: ipaddress.IPv4Address, private: bool, embedding: str
) -> None:
    halves = int(address) >> 16, int(address) & 0xFFFF
    text = embedding.format(*halves) if "x" in embedding else embedding.format(address)
    if int(ipaddress.ip_address(text)) == 1:
        return  # ::1 is this host, not the address 0.0.0.1.
    assert may_reach(text, private=private) == may_reach(str(address), private=private), text


eight, four = (st.binary(min_size=size, max_size=size) for size in (8, 4))
isatap = st.builds(lambda prefix, inner: ipaddress.IPv6Address(prefix + b"\0\0\x5e\xfe" + inner), eight, four)


@given(st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address) | isatap)
def test_only_global_unicast_is_public(address: ipaddress.IPv6Address) -> None:
    if may_reach(str(address), private=False) and address.packed[:12] != bytes(10) + b"\xff\xff":
        assert address in ipaddress.IPv6Network("2000::/3") or address.packed[:8] in (
            bytes(8),
            b"\0\x64\xff\x9b" + bytes(4),
        )
