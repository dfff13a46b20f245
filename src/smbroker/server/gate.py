"""The gate of TCP listeners: how many connections there may be, in all and of one address.

It is asked before anything is read or written. An IPv6 network of 64 bits counts as one address, because whoever has
one has all of them. `auto` does not count those of loopback, where proxies and one's own programs are.
"""

from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Literal

from smbroker.model.errors import ProtocolError
from smbroker.model.rights import address_of, is_loopback

IPV6_NETWORK = 64  # bits


class Gate:
    def __init__(self, most: int, of_one: int | Literal["auto"], auto: int, setting: str) -> None:
        """`auto` is the limit of one address that is not on loopback, where `of_one` does not name one."""
        self._most = most
        self._of_one = of_one
        self._auto = auto
        self._setting = setting
        self._inside = 0
        self._by_network: Counter[str] = Counter()

    def enter(self, host: str) -> None:
        """Who has entered must leave. Raises ProtocolError."""
        if self._inside >= self._most:
            raise ProtocolError("too_many_connections", f"there are {self._most} connections already ({self._setting})")
        network = network_of(host)
        most = self._most_of(network)
        if self._by_network[network] >= most:
            text = f"{host} has {most} connections already ({self._setting}_per_address)"
            raise ProtocolError("too_many_of_address", text)
        self._inside += 1
        self._by_network[network] += 1

    def leave(self, host: str) -> None:
        network = network_of(host)
        self._inside -= 1
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]

    def _most_of(self, network: str) -> int:
        if self._of_one != "auto":
            return self._of_one
        return self._most if is_loopback(network) else self._auto


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    address = address_of(host)
    if address is None:
        return host
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(IPv6Address(int(address) >> IPV6_NETWORK << IPV6_NETWORK))
