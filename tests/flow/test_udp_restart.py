"""UDP subscriptions survive a restart of the broker: none is lost, none comes twice, none comes back from the dead."""

import socket
from pathlib import Path

from flow.house import LIMIT, Broker, wait_for
from flow.peers import DIALECTS, FRAMES, TOPIC, Peer, ended, publish, settled


def restarted(data: Path, port: int, *options: str) -> Broker:
    return Broker("--listen", f"udp://127.0.0.1:{port}", *options, kinds=(), data=data)


def test_subscriptions_survive_a_restart_and_those_that_ended_do_not_come_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with restarted(data, 0) as broker:
        port = broker.ports["udp"]
        peers = {dialect: Peer(broker) for dialect in DIALECTS}
        for dialect, peer in peers.items():
            peer.subscribe(dialect, b"a/#" if dialect != "pipe" else b"#")
            peer.subscribe(dialect, TOPIC)
        left, gone = Peer(broker), Peer(broker)
        for peer in (left, gone):
            peer.subscribe("semicolon", TOPIC)
        left.send(b"u")
        address = gone.address
        gone.close()
        publish(broker, b"before", times=5)
        wait_for(lambda: ended(broker, address, "semicolon"))
        for dialect, peer in peers.items():
            assert [peer.receive() for _ in range(5)] == [FRAMES[dialect] % (TOPIC, b"before")] * 5
    with restarted(data, port) as broker:
        gone = Peer(broker, *address)
        for message in (b"1", b"2"):
            publish(broker, message)
            for dialect, peer in peers.items():
                assert peer.receive() == FRAMES[dialect] % (TOPIC, message), "one copy, and nothing old"
        for peer in (left, gone):
            assert peer.ask(b"Sstill/here") == b"Astill/here"
        peers["semicolon"].send(b"u")
        settled(broker)
    with restarted(data, port) as broker:
        publish(broker, b"third")
        for dialect in ("soh", "pipe"):
            assert peers[dialect].receive() == FRAMES[dialect] % (TOPIC, b"third")
        assert peers["semicolon"].ask(b"S|x") == b"Hello Subscriber!"
        for peer in (*peers.values(), left, gone):
            peer.close()


def test_more_subscriptions_than_are_now_allowed_do_not_keep_the_broker_from_starting(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with restarted(data, 0) as broker:
        port = broker.ports["udp"]
        peer = Peer(broker)
        for topic in (b"a", b"b", b"c"):
            peer.subscribe("semicolon", topic)
    with restarted(data, port, "-s", "2") as broker:
        for topic in (b"a", b"b", b"c"):
            publish(broker, topic=topic)
        assert {peer.receive(), peer.receive()} < {b"a;m", b"b;m", b"c;m"}
        assert peer.ask(b"Sstill/here") == b"Astill/here"
        broker.err.wait("warning: semicolon {}:{}: there are 2 subscribers already".format(*peer.address))
        peer.close()


def test_a_peer_gets_one_copy_after_restarts_on_other_ports(tmp_path: Path) -> None:
    data = tmp_path / "data"
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # not connected: hears every port
    client.bind(("127.0.0.1", 0))
    client.settimeout(LIMIT)
    with restarted(data, 0) as broker:
        client.sendto(b"Sa/b", ("127.0.0.1", broker.ports["udp"]))
        assert client.recv(100) == b"Aa/b"
    for number in (b"2", b"3"):
        with restarted(data, 0) as broker:
            publish(broker, number)
            assert client.recv(100) == b"\x01a/b\x02" + number
            client.sendto(b"Sthe/next", ("127.0.0.1", broker.ports["udp"]))
            assert client.recv(100) == b"Athe/next", "one copy"
    client.close()


def test_one_that_left_after_a_restart_on_another_port_does_not_come_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind(("127.0.0.1", 0))
        client.settimeout(LIMIT)
        for datagram in (b"sa/b", b"u", b""):
            with restarted(data, 0) as broker:
                client.sendto(datagram, ("127.0.0.1", broker.ports["udp"]))
                settled(broker)
                if datagram != b"sa/b":
                    publish(broker, b"after u")
                    client.sendto(b"Sthe/next", ("127.0.0.1", broker.ports["udp"]))
                    assert client.recv(100) == b"Athe/next"
