"""The subscriptions of UDP peers outlive the broker; those that ended do not come back."""

import signal
from pathlib import Path

from flow.house import Udp, wait_for
from flow.keeping import HOW, PEERS, ended
from flow.lasting import Home, send_all
from flow.peers import Peer, signalled

SUBSCRIPTIONS = [
    ("soh", b"a/b", b"\x01a/b\x02x"),
    ("soh", b"a/#", b"\x01a/b\x02x"),
    ("soh", b"#", b"\x01a/b\x02x"),
    ("pipe", b"a/b", b"TOPIC: a/b - MESSAGE: x"),
    ("pipe", b"#", b"TOPIC: a/b - MESSAGE: x"),
    ("semicolon", b"a/b", b"a/b;x"),
    ("semicolon", b"#/b", b"a/b;x"),
    ("semicolon", b"a/#", b"a/b;x"),
]


@HOW
def test_udp_subscriptions_outlive_the_broker(tmp_path: Path, how: str) -> None:
    home = Home(tmp_path)
    broker = home.broker()
    peers = [Peer(broker) for _ in SUBSCRIPTIONS]
    for peer, (dialect, topic, _) in zip(peers, SUBSCRIPTIONS, strict=True):
        peer.subscribe(dialect, topic)
    home.wait_saved(PEERS, len(SUBSCRIPTIONS))
    ended(broker, how)
    with home.broker() as broker:
        Udp(broker.ports["udp"]).send(b"pa/b;x")
        for peer, (_, _, expected) in zip(peers, SUBSCRIPTIONS, strict=True):
            assert peer.receive() == expected
        send_all(broker, b"other", [b"y"])
        everything = [peer for peer, (_, topic, _) in zip(peers, SUBSCRIPTIONS, strict=True) if topic == b"#"]
        assert everything[-1].receive() == b"TOPIC: other - MESSAGE: y"


@HOW
def test_udp_subscriptions_that_ended_do_not_come_back(tmp_path: Path, how: str) -> None:
    """By `u`, by SIGUSR1 and the next subscribe, and because what is sent comes back."""
    home = Home(tmp_path)
    broker = home.broker()
    unsubscribed, dropped, vanished, staying, last = (Peer(broker) for _ in range(5))
    unsubscribed.subscribe("semicolon", b"t")
    dropped.subscribe("semicolon", b"t")
    vanished.subscribe("pipe", b"t")
    staying.subscribe("pipe", b"t")
    home.wait_saved(PEERS, 4)
    unsubscribed.send(b"u")
    home.wait_saved(PEERS, 3)
    signalled(broker, signal.SIGUSR1)
    last.subscribe("semicolon", b"last")
    home.wait_saved(PEERS + " AND filter = CAST('last' AS BLOB)", 1)
    home.wait_saved(PEERS, 3)
    vanished_address = vanished.address
    vanished.close()
    publisher = broker.udp()
    wait_for(lambda: publisher.send(b"pt;x") or home.has_saved(PEERS, 2), "the end of the subscription")
    ended(broker, how)
    with home.broker() as broker:
        back = Peer(broker, *vanished_address)
        send_all(broker, b"t", [b"after"])
        while staying.receive() != b"TOPIC: t - MESSAGE: after":
            pass
        send_all(broker, b"last", [b"x"])
        assert last.receive() == b"last;x"
        for peer in (unsubscribed, dropped, back):
            assert peer.silent()


def test_both_kinds_of_the_same_peer_are_apart(tmp_path: Path) -> None:
    home = Home(tmp_path)
    broker = home.broker()
    peer = Peer(broker)
    peer.subscribe("semicolon", b"t")
    peer.subscribe("pipe", b"t")
    home.wait_saved(PEERS, 2)
    peer.send(b"u")
    home.wait_saved(PEERS, 1)
    broker.kill()
    with home.broker() as broker:
        send_all(broker, b"t", [b"x"])
        assert peer.receive() == b"TOPIC: t - MESSAGE: x"
        assert peer.silent()
