"""UDP beyond friends: amplification, rates, ranges of addresses, and the warning."""

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from flow.house import LIMIT, Broker, wait_for
from flow.wires import answers, config, wait_read

PIPE_FIXED = {b"Hello Publisher!", b"Hello Subscriber!", b"ERROR: refused"}
KINDS = ("udp", "web")
ANSWERED_ALIKE = [b"S" + topic for topic in (b"a", b"a/b", b"#", b"x" * 500 + b"/" + b"y" * 500, b"", b"/", b"\xff/x")]
NOT_ANSWERED = [
    *(b"s" + topic for topic in (b"a", b"#", b"", b"a/#/c", b"x" * 600)),
    *(b"u", b"\x01a/b\x02m", b"pa;m", b"A", b"Hello Subscriber!", b"TOPIC: a - MESSAGE: m", b"\0" * 100),
]
PIPE = [b"S|a", b"P|a|m", b"S|", b"P|", b"P||m", b"P|#|m", b"S|\xff", b"P|" + b"\xff" * 90]


def sender(broker: Broker, host: str = "127.0.0.5") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.bind((host, 0))
    sock.connect(("127.0.0.1", broker.ports["udp"]))
    sock.settimeout(LIMIT)
    return sock


def taken(sock: socket.socket) -> list[bytes]:
    """All that has come."""
    sock.setblocking(False)
    found = []
    try:
        while True:
            found.append(sock.recv(65_536))
    except BlockingIOError:
        return found


def dropped(broker: Broker) -> dict[str, int]:
    url = f"http://127.0.0.1:{broker.ports['web']}/v1/stats"
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        counted: dict[str, int] = json.load(answer)["dropped"]
        return counted


def test_a_subscribe_is_answered_with_no_more_than_was_asked(tmp_path: Path) -> None:
    """From any port of any address: none of these need have been sent by whoever is there."""
    with Broker(*config(tmp_path, "[udp]\nmax_replies = 100000\n"), kinds=KINDS) as broker:
        for number, request in enumerate(ANSWERED_ALIKE + NOT_ANSWERED):
            with sender(broker, f"127.0.0.{number + 10}") as sock:
                sock.send(request)
                assert broker.udp().ask(b"S|probe") == b"Hello Subscriber!"  # so that was heard too
                assert sum(map(len, taken(sock))) <= len(request), request
        for number, request in enumerate(PIPE):
            with sender(broker, f"127.0.1.{number + 10}") as sock:
                sock.send(request)
                (answer,) = (sock.recv(65_536), *taken(sock))
                plain = answer.startswith(b"ERROR: ") and len(answer) <= len(request)
                assert plain or answer in PIPE_FIXED, request


def test_answers_to_one_address_are_limited_in_rate_whatever_its_ports(tmp_path: Path) -> None:
    with Broker(*config(tmp_path, "[udp]\nmax_replies = 5\n"), kinds=KINDS) as broker:
        ports = [sender(broker) for _ in range(10)]
        for number in range(2_000):
            ports[number % 10].send((b"S|a", b"P|b|m", b"P|", b"Sx/y")[number % 4])
            if number % 100 == 99:  # so that none is lost before the broker sees it
                wait_read(broker, "udp")
        answers(broker.udp())  # another address is served as ever
        left_out = wait_for(lambda: dropped(broker).get("reply_rate"), "a refusal")
        assert left_out > 1_000  # 5 at once and 5 a second: no machine is so slow
        for sock in ports:
            sock.close()


def test_bytes_and_datagrams_of_one_address_are_limited_in_rate(tmp_path: Path) -> None:
    limits = config(tmp_path, "[udp]\nmax_bytes = 5000\nmax_datagrams = 100\n")
    with Broker(*limits, kinds=KINDS) as broker:
        with sender(broker) as subscriber, sender(broker, "127.0.0.6") as publisher:
            subscriber.send(b"Sa/b")
            assert subscriber.recv(100) == b"Aa/b"
            for _ in range(1_000):
                publisher.send(b"\x01a/b\x02" + b"m" * 995)
            wait_for(lambda: dropped(broker).get("send_rate"), "a refusal")
            wait_for(lambda: dropped(broker).get("datagram_rate"), "a refusal")
        answers(broker.udp())


def test_only_addresses_of_the_ranges_are_heard(tmp_path: Path) -> None:
    limits = config(tmp_path, '[udp]\nallow = ["127.0.0.0/30"]\n')
    with Broker(*limits, kinds=KINDS) as broker:
        friend, stranger = sender(broker, "127.0.0.2"), sender(broker, "127.0.0.9")
        with friend, stranger:
            for request in (b"Sa/b", b"S|a", b"P|a|m", b"sa"):
                stranger.send(request)
            wait_for(lambda: dropped(broker).get("address_not_allowed") == 4, "four refusals")
            friend.send(b"Sa/b")
            assert friend.recv(100) == b"Aa/b"
            assert taken(stranger) == []


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_udp_open_to_the_network_is_warned_of(host: str, warned: bool) -> None:
    with Broker("--listen", f"semicolon://{host}:0", kinds=("padded",)) as broker:
        broker.out.wait("ready")
        broker.stop()
        assert any("reflection" in line and "udp.allow" in line for line in broker.err.all) == warned
