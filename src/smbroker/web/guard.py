"""Who may ask: requests that call us by a name that is ours, from no foreign page.

A page of a stranger can have its own name lead to 127.0.0.1 (DNS rebinding); the browser then sends that
name as Host. And it can post to us without asking; the browser then names the page as Origin. What a page merely
embeds, such as a picture, has no Origin; browsers then say so in Sec-Fetch-Site. Links may lead to us.
"""

from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers

from smbroker.model.errors import Refused

OURS = {"same-origin", "none"}  # none: the user's own doing, or no browser at all


def check(headers: Headers, address: str, hosts: Collection[str]) -> None:
    """`address` is the one that the request came in by. Raises Refused."""
    named = headers.getlist("host")
    host = named[0] if len(named) == 1 else ""
    name = _name(host)
    if "*" not in hosts and not _is_loopback(name) and name != _plain(address) and name not in hosts:
        raise Refused("bad_host", f"the host {name[:100]!r} is not one of ours; web.hosts names further ones")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise Refused("bad_origin", f"requests of pages from {origin[:100]!r} are not taken")
    if headers.get("sec-fetch-site", "none") not in OURS and headers.get("sec-fetch-mode") != "navigate":
        raise Refused("bad_origin", "requests of pages from elsewhere are not taken")


def _name(host: str) -> str:
    """The host without its port and the brackets of IPv6."""
    if host.startswith("["):
        return _plain(host[1:].partition("]")[0])
    return host.partition(":")[0].lower().removesuffix(".")


def _plain(address: str) -> str:
    return address.lower().partition("%")[0]


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
