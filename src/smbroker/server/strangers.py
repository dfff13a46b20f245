"""Datagrams of strangers: whose are taken at all, and at which rates they are read and answered.

An address is whatever the sender writes, so whoever is answered may never have asked. A `Meter` lets so many through a
second, and as many at once. Addresses are counted as the gate counts them: an IPv6 network of 64 bits is one.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from time import monotonic
from weakref import WeakValueDictionary

from smbroker.model.errors import Refused, UsageError
from smbroker.model.rights import address_of, is_loopback
from smbroker.server.config import UdpConfig
from smbroker.server.datagrams import Address, RawAddress
from smbroker.server.gate import network_of

AUTO_REPLIES = 1_000  # a second, to an address that is not on loopback
BROADCAST = "255.255.255.255"  # that of a network is refused by the system
MAX_METERS = 50_000  # of addresses whose datagrams are counted


class Meter:
    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._level = rate
        self._at = monotonic()

    def takes(self, amount: float, now: float) -> bool:
        self._level = min(self._rate, self._level + (now - self._at) * self._rate)
        self._at = now
        if amount > self._level:
            return False
        self._level -= amount
        return True


class Outgoing:
    """What may be sent to one address; None: any amount."""

    __slots__ = ("__weakref__", "bytes", "replies")

    def __init__(self, replies: int, bytes_: int) -> None:
        self.replies = Meter(replies) if replies else None
        self.bytes = Meter(bytes_) if bytes_ else None


class Strangers:
    def __init__(self, config: UdpConfig, own: Address) -> None:
        self._config = config
        self._own = own
        self._allowed = allowed(config.allow)
        self._outgoing: WeakValueDictionary[str, Outgoing] = WeakValueDictionary()
        self._incoming: dict[RawAddress, Meter] = {}
        self.counts_datagrams = config.max_datagrams > 0

    def check(self, where: Address) -> None:
        """Raises Refused."""
        host, _ = where
        address = address_of(host)
        assert address
        nobody = address.is_multicast or address.is_unspecified or host == BROADCAST
        if nobody or where == self._own:
            raise Refused("bad_address", "not an address that could be answered")
        if self._allowed and not any(address in network for network in self._allowed):
            raise Refused("address_not_allowed", "its address is in none of the ranges of udp.allow")

    def outgoing(self, host: str) -> Outgoing | None:
        """None: there is no limit."""
        replies = self._config.max_replies
        if replies == "auto":
            replies = 0 if is_loopback(host) else AUTO_REPLIES
        if not replies and not self._config.max_bytes:
            return None
        network = network_of(host)
        made = self._outgoing.get(network)
        if made is None:
            made = self._outgoing[network] = Outgoing(replies, self._config.max_bytes)
        return made

    def let_in(
        self, datagrams: list[bytes], addresses: Sequence[RawAddress]
    ) -> tuple[list[bytes], Sequence[RawAddress]]:
        """Those that do not exceed `max_datagrams`."""
        now, meters = monotonic(), self._incoming
        if len(meters) > MAX_METERS:
            meters.clear()
        taken = []
        for at, address in enumerate(addresses):
            key = _network(address)
            meter = meters.get(key)
            if meter is None:
                meter = meters[key] = Meter(self._config.max_datagrams)
            if meter.takes(1, now):
                taken.append(at)
        return [datagrams[at] for at in taken], [addresses[at] for at in taken]


def _network(raw: RawAddress) -> RawAddress:
    """Of a raw address, as `datagrams` has it."""
    if isinstance(raw, bytes):
        return raw[4:8] if len(raw) == 8 else raw[8:16]
    assert isinstance(raw, tuple)
    host: str = raw[0]
    return host


def allowed(ranges: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    found = []
    for text in ranges:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise UsageError("config", f"udp.allow: {error}; write ranges as 192.168.1.0/24") from error
    return found
