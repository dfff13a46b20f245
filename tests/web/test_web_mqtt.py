"""MQTT over WebSocket: the handshake, packets in frames cut anyhow, real clients, clients that misbehave."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import LIMIT, Broker, wait_for
from flow.mqtt import Mqtt
from flow.wires import config, half_closed
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Ack, Connack, Connect, Ping, Publish, Subscribe, Topics, Will
from web.calls import get
from web.websocket import BINARY, CONTINUED, PING, PONG, TEXT, WebSocket, asked, frame

KINDS = ("web", "mqtt")


@pytest.fixture(scope="module", params=["log", "no-log"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(*(["--no-log"] if request.param == "no-log" else []), kinds=KINDS) as broker:
        yield broker


def connected(broker: Broker, client: str = "", **more: object) -> Mqtt:
    return Mqtt(broker, client, over=WebSocket(broker), **more)  # type: ignore[arg-type]


# --- the handshake ---


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"Upgrade": None}, 426, "not_websocket"),
        ({"Upgrade": "h2c"}, 426, "not_websocket"),
        ({"Connection": "close"}, 426, "not_websocket"),
        ({"Sec_WebSocket_Version": "8"}, 400, "bad_websocket"),
        ({"Sec_WebSocket_Key": None}, 400, "bad_websocket"),
        ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400, "bad_websocket"),
        ({"Sec_WebSocket_Key": "not base64!"}, 400, "bad_websocket"),
        ({"Sec_WebSocket_Protocol": None}, 400, "bad_websocket"),
        ({"Sec_WebSocket_Protocol": "chat, amqp"}, 400, "bad_websocket"),
        ({"Host": "evil.example"}, 400, "bad_host"),
        ({"Origin": "http://evil.example"}, 403, "bad_origin"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "bad_origin"),
    ],
    ids=str,
)
def test_a_handshake_that_is_refused(broker: Broker, changed: dict[str, str | None], status: int, code: str) -> None:
    said = asked(broker, **changed)
    assert (said.status, said.code) == (status, code)


@pytest.mark.parametrize("protocol", ["mqtt", "mqttv3.1", "chat, mqtt"])
def test_the_subprotocols_of_mqtt(broker: Broker, protocol: str) -> None:
    client = Mqtt(broker, over=WebSocket(broker, protocol), version=3 if protocol == "mqttv3.1" else 4, client="c")
    assert client.connack.code == 0
    assert client.quiet()


def test_there_is_nothing_at_mqtt_for_other_requests(broker: Broker) -> None:
    assert get(broker, "/mqtt").status == 426


# --- packets in frames ---


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_packets_may_be_cut_anyhow_over_frames(broker: Broker, version: int, size: int) -> None:
    """Messages of `size` bytes, each of two frames, and the whole in writes of another size."""
    packets = [
        Connect(version, f"cut-{version}-{size}"),
        Subscribe(1, [Topics(b"cut", 2)]),
        Publish(b"cut", b"one", 1, packet_id=2),
        Ping(f.PINGREQ),
    ]
    stream = b"".join(packet.encode(version) for packet in packets)
    frames = b""
    for at in range(0, len(stream), size):
        piece = stream[at : at + size]
        half = len(piece) // 2
        frames += frame(BINARY, piece[:half], last=False) + frame(PING) + frame(CONTINUED, piece[half:])
    sock = WebSocket(broker)
    for at in range(0, len(frames), 11):
        sock.sock.sendall(frames[at : at + 11])
    client = Mqtt(broker, version=version, connect=False, over=_without_pongs(sock))
    got = {type(client.next()) for _ in range(5)}
    assert {Connack, Ack, Publish, Ping} <= got


def _without_pongs(sock: WebSocket) -> WebSocket:
    def some(limit: float = LIMIT) -> bytes:
        while (found := sock.next(limit))[0] == PONG:
            pass
        assert found[0] == BINARY
        return found[1]

    sock.some = some  # type: ignore[method-assign]
    return sock


def test_what_comes_with_the_handshake_is_not_lost(broker: Broker) -> None:
    early = frame(BINARY, Connect(4, "early").encode())
    client = Mqtt(broker, connect=False, over=WebSocket(broker, early=early))
    assert client.expect(Connack).code == 0


def test_a_ping_is_answered(broker: Broker) -> None:
    client = connected(broker)
    client.tcp.sock.sendall(frame(PING, b"are you there"))
    assert client.tcp.next() == (PONG, b"are you there")
    assert client.quiet()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_go_between_tcp_and_websocket(broker: Broker, version: int, qos: int) -> None:
    web, tcp = connected(broker, version=version), Mqtt(broker, version=version)
    payload = bytes(range(256)) * 700  # more than one frame
    for client in (web, tcp):
        assert client.subscribe(f"between/{version}/{qos}", qos=qos) == [qos]
    for publisher, other in ((web, tcp), (tcp, web)):
        number = 9 if qos else 0
        publisher.send(Publish(f"between/{version}/{qos}".encode(), payload, qos, packet_id=number))
        message = other.get()
        assert (message.payload, message.qos) == (payload, qos)
        _finish(publisher, qos)
    assert web.quiet()


def _finish(publisher: Mqtt, qos: int) -> None:
    """Its own copy, and the acknowledgements of its publish, in whatever order they come."""
    copy, acks, released = None, [], qos < 2
    while copy is None or len(acks) < qos or not released:
        packet = publisher.next()
        if isinstance(packet, Publish):
            copy = packet
            if qos:
                publisher.send(Ack(f.PUBACK if qos == 1 else f.PUBREC, packet.packet_id))
        elif isinstance(packet, Ack) and packet.kind == f.PUBREL:
            publisher.send(Ack(f.PUBCOMP, packet.packet_id))
            released = True
        elif isinstance(packet, Ack):
            acks.append(packet.kind)
            if packet.kind == f.PUBREC:
                publisher.send(Ack(f.PUBREL, packet.packet_id))


def test_a_will_when_the_socket_ends_without_a_disconnect(broker: Broker) -> None:
    watcher = Mqtt(broker)
    watcher.subscribe("will/+", qos=1)
    for name, end in (("close", frame(8)), ("text", frame(TEXT, b"x")), ("broken", b"\xff\xff")):
        client = connected(broker, name, will=Will(f"will/{name}".encode(), b"dead", 1))
        client.tcp.sock.sendall(end)
        assert watcher.get().topic == f"will/{name}".encode()
    connected(broker, "lost", will=Will(b"will/lost", b"dead", 1)).tcp.sock.close()
    assert watcher.get().topic == b"will/lost"
    connected(broker, "leaves", will=Will(b"will/leaves", b"dead", 1)).disconnect()
    assert watcher.quiet()


def test_a_session_over_websocket(broker: Broker) -> None:
    client = connected(broker, "web-session", clean=False)
    client.subscribe("ws/session", qos=1)
    client.disconnect()
    Mqtt(broker).publish("ws/session", b"while away", 1)
    back = connected(broker, "web-session", clean=False)
    assert back.connack.present
    assert back.get().payload == b"while away"
    back.disconnect()


# --- misbehaving ---


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"hello"), 1003),
        (frame(BINARY, b"\xc0\x00", masked=False), 1002),
        (frame(CONTINUED, b"x"), 1002),
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
    ],
    ids=["text", "no mask", "continued", "not a frame"],
)
def test_what_is_no_binary_frame_ends_the_connection(broker: Broker, data: bytes, code: int) -> None:
    client = connected(broker)
    client.tcp.sock.sendall(data)
    assert client.tcp.ended(code)


def test_a_client_that_goes_on_sending_still_hears_why_it_was_ended(broker: Broker) -> None:
    client = connected(broker, version=5)
    client.send(Publish(b"#", b"x"))
    assert half_closed(client.tcp.sock)
    for _ in range(10):
        client.send(Publish(b"t", b"x"))
    assert client.ended(0x90)


def test_packets_before_a_wish_to_close_are_answered_first(broker: Broker) -> None:
    client = connected(broker)
    packet = Publish(b"last/words", b"x", 1, packet_id=1).encode(4)
    client.tcp.sock.sendall(frame(BINARY, packet) + frame(8, b"\x03\xe8"))
    assert client.expect(Ack) == Ack(f.PUBACK, 1)
    assert client.tcp.ended(1000)


def test_the_first_packet_must_be_connect(broker: Broker) -> None:
    sock = WebSocket(broker)
    sock.send(b"\xc0\x00")
    assert sock.closed()


def test_a_frame_that_promises_everything_holds_nothing(broker: Broker) -> None:
    before = broker.memory()
    socks = [connected(broker).tcp for _ in range(20)]
    for sock in socks:
        sock.sock.sendall(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4) + b"\x30\xff\xff\xff\x7f")
        assert sock.closed()
    assert broker.memory() - before < 50 << 20


def test_a_client_that_pings_and_never_reads_is_bounded(broker: Broker) -> None:
    client = connected(broker)
    before = broker.memory()
    pings = frame(PING, b"x" * 125) * 5_000
    client.tcp.sock.settimeout(LIMIT)
    for _ in range(60):
        client.tcp.sock.sendall(pings)
    assert Mqtt(broker).quiet()
    assert broker.memory() - before < 60 << 20


def test_no_connect_within_the_time_ends_the_connection(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[mqtt]\nconnect_timeout = 0.2\n"), kinds=KINDS) as broker:
        sock = WebSocket(broker)
        sock.sock.settimeout(LIMIT)
        assert sock.sock.recv(100) == b""


def test_connections_are_limited(tmp_path: Path) -> None:
    with Broker("--no-log", *config(tmp_path, "[web]\nmax_connections = 3\n"), kinds=KINDS) as broker:
        clients = [connected(broker) for _ in range(2)]
        assert asked(broker).status == 503
        clients.pop().disconnect()
        assert wait_for(lambda: asked(broker).status == 101)


def test_the_broker_says_goodbye() -> None:
    with Broker(kinds=KINDS) as broker:
        client = connected(broker, version=5)
        broker.stop()
        assert client.ended(0x8B)
