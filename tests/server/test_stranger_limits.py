"""Whose datagrams are taken, and at which rates."""

import pytest

from smbroker.model.errors import Refused, UsageError
from smbroker.server.config import UdpConfig
from smbroker.server.gate import network_of
from smbroker.server.strangers import AUTO_REPLIES, Meter, Outgoing, Strangers, allowed

OWN = ("192.0.2.1", 8080)


def refusal(where: tuple[str, int], *ranges: str) -> str:
    try:
        Strangers(UdpConfig(allow=ranges), OWN).check(where)
    except Refused as error:
        return error.code
    return ""


@pytest.mark.parametrize("host", ["224.0.0.1", "239.255.255.250", "ff02::1", "0.0.0.0", "::", "255.255.255.255"])
def test_nobody_is_answered_at_an_address_of_many_or_of_none(host: str) -> None:
    assert refusal((host, 9)) == "bad_address"


def test_nor_are_we_ourselves() -> None:
    assert refusal(OWN) == "bad_address"
    assert refusal(("198.51.100.7", 9)) == ""


def test_only_addresses_of_the_ranges_are_taken() -> None:
    ranges = ("198.51.100.0/24", "fd00::/8")
    assert refusal(("198.51.100.7", 9), *ranges) == ""
    assert refusal(("fd12::7%lo", 9), *ranges) == ""
    assert refusal(("203.0.113.7", 9), *ranges) == "address_not_allowed"
    assert refusal(("2001:db8::7", 9), *ranges) == "address_not_allowed"


@pytest.mark.parametrize("text", ["house", "192.168.1.1/24", "300.0.0.0/8", ""])
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"udp\.allow"):
        allowed([text])


def test_a_meter_lets_a_second_s_worth_through_at_once_and_then_as_time_goes() -> None:
    meter = Meter(10)
    now = meter._at
    assert [meter.takes(1, now) for _ in range(12)] == [True] * 10 + [False] * 2
    assert meter.takes(1, now + 0.15)
    assert not meter.takes(1, now + 0.15)
    assert [meter.takes(1, now + 60) for _ in range(11)] == [True] * 10 + [False]


def test_only_strangers_are_limited_by_default() -> None:
    strangers = Strangers(UdpConfig(), OWN)
    assert strangers.outgoing("127.0.0.9") is None
    assert strangers.outgoing("::1") is None
    one = strangers.outgoing("198.51.100.7")
    assert isinstance(one, Outgoing)
    assert one is strangers.outgoing("198.51.100.7")
    assert one.replies
    now = one.replies._at
    assert sum(one.replies.takes(1, now) for _ in range(2 * AUTO_REPLIES)) == AUTO_REPLIES


def test_an_ipv6_network_is_one_address() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2:ffff::1") != network_of("2001:db8:1:3::1")
    assert network_of("::ffff:192.0.2.7") == "192.0.2.7"
    strangers = Strangers(UdpConfig(), OWN)
    one = strangers.outgoing("2001:db8::1")
    assert one is strangers.outgoing("2001:db8::2")


def test_what_is_no_longer_sent_to_is_forgotten() -> None:
    strangers = Strangers(UdpConfig(), OWN)
    kept = [strangers.outgoing(f"198.51.100.{number}") for number in range(100)]
    assert len(strangers._outgoing) == 100
    kept.clear()
    assert len(strangers._outgoing) == 0
