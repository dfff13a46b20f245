"""A right that is taken away while something lives on it: from that moment on nothing more comes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.mqtt import Mqtt
from flow.peers import FRAMES
from flow.wires import SmallTcp, TypedSubscriber, delivery, padded, padded_subscriber, subscription
from rights.guarded import CLOSED, SECRETS, as_boss, as_user, change, guarded, login, password, reload, write_users
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Will
from web.calls import Events, get, post

OPEN = '[[allow]]\nanyone = true\ntopics = ["#", "$SYS/#"]\n'
NOT_ANN = SECRETS + '[[deny]]\nuser = "ann"\ntopics = ["#", "$SYS/#"]\n'


def both(broker: Broker, retain: str = "") -> None:
    for topic in ("secret/x", "open/x"):
        assert post(broker, topic + retain, topic.encode(), **as_boss()).status == 200


TURNS = [(OPEN, [b"secret/x", b"open/x"]), (SECRETS, [b"open/x"]), (OPEN, [b"secret/x", b"open/x"])]
PEERS = {"soh": (b"S#/x", b"A#/x"), "pipe": (b"S|#", b"Hello Subscriber!"), "semicolon": (b"s#/x", b"")}


def test_live_routes(tmp_path: Path) -> None:
    """Each turn has the rules changed, and every subscriber gets what it may, then."""
    with guarded(tmp_path, OPEN) as broker:
        typed = TypedSubscriber(broker, b"T1", b"secret/x", b"open/x")
        typed.settle()
        readers: list[Callable[[bytes], bool]] = [lambda topic: typed.take()[:50].rstrip(b"\0") == topic]
        readers += [peer_of(broker, dialect) for dialect in PEERS]
        readers += [client_of(broker, qos) for qos in range(3)]
        padded = padded_subscriber(broker, b"secret/x", b"open/x")
        readers.append(lambda topic: padded.receive(192 + len(topic)) == delivery(topic, topic))
        stream = Events(broker, "?filter=%2B/x", **as_user("ann"))
        readers.append(lambda topic: stream.next().data["topic"] == topic.decode())
        for rules, topics in TURNS:
            change(broker, tmp_path, rules)
            both(broker)
            for topic in topics:
                assert all(reader(topic) for reader in readers), (rules, topic)


@pytest.mark.parametrize("version", [4, 5])
def test_a_publisher_that_goes_on_with_the_same_topic(tmp_path: Path, version: int) -> None:
    with guarded(tmp_path, OPEN) as broker:
        boss = login(broker, "boss")
        boss.subscribe("secret/x", "open/end")
        ann, bob = (login(broker, name, version=version) for name in ("ann", "bob"))
        for rules, topics in TURNS:
            change(broker, tmp_path, rules)
            for _ in range(5):  # from the third on they take the short way
                ann.publish("secret/x", b"a read of its own")
                if b"secret/x" in topics:
                    assert boss.get().payload == b"a read of its own"
            bob.publish("open/end", rules.encode())
            assert boss.get().payload == rules.encode()


def peer_of(broker: Broker, dialect: str) -> Callable[[bytes], bool]:
    asked, ack = PEERS[dialect]
    peer = broker.udp()
    peer.send(asked)
    assert not ack or peer.receive() == ack
    assert peer.ask(b"P|$|").startswith(b"ERROR"), "answered after the subscription"

    def got(topic: bytes) -> bool:
        while b"mark/" in (frame := peer.receive()):
            pass  # of a typed subscriber
        return frame == FRAMES[dialect] % (topic, topic)

    return got


def client_of(broker: Broker, qos: int) -> Callable[[bytes], bool]:
    client = login(broker, "ann", version=5)
    assert client.subscribe("+/x", "secret/x", qos=qos) == [qos, qos]
    return lambda topic: client.get().topic == topic


def test_what_waits_for_clients_that_are_away(tmp_path: Path) -> None:
    with guarded(tmp_path, OPEN) as broker:
        ann = login(broker, "ann", "kept", clean=False)
        ann.subscribe("+/x", qos=1)
        ann.disconnect()
        typed = TypedSubscriber(broker, b"T1")
        typed.send(subscription(b"secret/x", 1) + subscription(b"open/x", 1))
        typed.client.sock.close()
        broker.out.wait("Client T1 disconnected.")
        both(broker)
        change(broker, tmp_path, SECRETS)
        ann = login(broker, "ann", "kept", clean=False)
        assert ann.get().topic == b"open/x"
        assert ann.quiet()
        again = broker.tcp("typed")
        again.send(b"T1".ljust(11, b"\0"))
        assert again.receive(1570)[:6] == b"open/x"


def test_what_was_sent_and_not_acknowledged_is_not_sent_again(tmp_path: Path) -> None:
    with guarded(tmp_path, OPEN) as broker:
        ann = login(broker, "ann", "flight", clean=False)
        ann.subscribe("#", qos=1)
        both(broker)
        assert [ann.next().topic for _ in range(2)] == [b"secret/x", b"open/x"]  # type: ignore[union-attr]
        ann.drop()
        change(broker, tmp_path, SECRETS)
        ann = login(broker, "ann", "flight", clean=False)
        again = ann.get()
        assert (again.topic, again.dup) == (b"open/x", True)
        assert ann.quiet()


def test_what_waits_in_a_queue_for_acknowledgements(tmp_path: Path) -> None:
    with guarded(tmp_path, OPEN) as broker:
        ann = login(broker, "ann", version=5, properties={f.RECEIVE_MAXIMUM: 1})
        ann.subscribe("#", qos=1)
        post(broker, "open/first", b"", **as_boss())
        both(broker)
        first = ann.next()
        change(broker, tmp_path, SECRETS)
        ann.accept(first)  # type: ignore[arg-type]
        assert ann.get().topic == b"open/x"


def test_a_replay_that_is_under_way(tmp_path: Path) -> None:
    with guarded(tmp_path, OPEN) as broker:
        both(broker)
        both(broker)
        ann = login(broker, "ann", version=5, properties={f.RECEIVE_MAXIMUM: 1})
        assert ann.subscribe("#", qos=1, properties={f.USER: [("smb-replay", "all")]}) == [1]
        first = ann.next()
        assert first.topic == b"secret/x"  # type: ignore[union-attr]
        change(broker, tmp_path, SECRETS)
        ann.accept(first)  # type: ignore[arg-type]
        assert [ann.get().topic for _ in range(2)] == [b"open/x"] * 2
        assert ann.quiet()


MANY = 300  # messages of 100 KB: far more than fits between the broker and a reader that does not read


def test_history_that_is_under_way(tmp_path: Path) -> None:
    """Some of it has left the broker and arrives; the rest does not, and what is allowed comes next."""
    with guarded(tmp_path, OPEN) as broker:
        boss, secret = login(broker, "boss"), b"x" * 100_000
        for _ in range(MANY):
            boss.publish("secret/x", secret)
        boss.publish("open/x", b"open", 1)
        stream = Events(broker, "?filter=%23&from=earliest", **as_user("ann"))
        assert stream.next().data["topic"] == "secret/x"
        reader = SmallTcp(broker.ports["padded"])
        reader.send(padded(b"Subscribe", b"secret/x"))
        assert reader.receive(64) == padded(b"SubAck")
        assert reader.receive(192 + len(secret)) == delivery(b"secret/x", secret)
        change(broker, tmp_path, SECRETS)
        seen = 0
        while stream.next().data["topic"] == "secret/x":
            seen += 1
        assert seen < MANY - 1
        reader.send(padded(b"Subscribe", b"open/x"))
        seen = 0
        while (word := reader.receive(64)) != padded(b"SubAck"):
            assert word == padded(b"Message")
            reader.receive(128 + len(secret))
            seen += 1
        assert seen < MANY - 1
        assert reader.receive(196) == delivery(b"open/x", b"open")


@pytest.mark.parametrize("options", [(), ("--no-log",)], ids=["log", "no log"])
def test_for_clients_that_are_away_and_share(tmp_path: Path, options: tuple[str, ...]) -> None:
    with guarded(tmp_path, OPEN, *options, kinds=("mqtt",)) as broker:
        boss = login(broker, "boss")
        ann = login(broker, "ann", "away", clean=False)
        ann.subscribe("#", "$share/g/#", qos=1)
        ann.disconnect()
        for topic in ("secret/x", "open/x"):
            boss.publish(topic, b"m", 1)
        change(broker, tmp_path, SECRETS)
        ann = login(broker, "ann", "away", clean=False)
        assert {ann.get().topic for _ in range(2)} == {b"open/x"}
        assert ann.quiet()


def test_retained_messages(tmp_path: Path) -> None:
    with guarded(tmp_path, OPEN) as broker:
        both(broker, "?retain=1")
        ann = login(broker, "ann")
        ann.subscribe("#")
        assert {ann.get().topic for _ in range(2)} == {b"open/x", b"secret/x"}
        change(broker, tmp_path, SECRETS)
        ann.subscribe("#")
        assert ann.get().topic == b"open/x"
        assert ann.quiet()


def test_a_will(tmp_path: Path) -> None:
    with guarded(tmp_path, OPEN) as broker:
        boss = login(broker, "boss")
        boss.subscribe("#")
        ann = login(broker, "ann", will=Will(b"secret/will", b"m"))
        bob = login(broker, "bob", will=Will(b"open/will", b"m"))
        change(broker, tmp_path, SECRETS)
        ann.drop()
        wait_for(lambda: get(broker, "/v1/stats", **as_boss()).json["dropped"].get("not_allowed"))
        bob.drop()
        assert boss.get().topic == b"open/will"


def test_publishing(tmp_path: Path) -> None:
    """What was allowed a moment ago is remembered as such; a change is heard all the same."""
    with guarded(tmp_path, OPEN) as broker:
        boss, ann, peer = login(broker, "boss"), login(broker, "ann", version=5), broker.udp()
        boss.subscribe("#")
        for _ in range(2):
            assert ann.publish("secret/x", b"m", 1).reason == 0  # type: ignore[union-attr]
            assert peer.ask(b"P|secret/x|m") == b"Hello Publisher!"
        change(broker, tmp_path, SECRETS)
        assert ann.publish("secret/x", b"m", 1).reason == 0x87  # type: ignore[union-attr]
        assert peer.ask(b"P|secret/x|m").startswith(b"ERROR: not allowed")
        ann.publish("open/x", b"m", 1)
        assert [boss.get().topic for _ in range(5)] == [b"secret/x"] * 4 + [b"open/x"]


def test_whoever_may_do_nothing_any_more_has_to_leave(tmp_path: Path) -> None:
    with guarded(tmp_path, SECRETS) as broker:
        five, four = login(broker, "ann", version=5), login(broker, "ann", version=4)
        stream = Events(broker, **as_user("ann"))
        page = Events(broker, "?tail=1", path="/v1/live", **as_user("ann"))
        bob = login(broker, "bob")
        change(broker, tmp_path, NOT_ANN)
        assert five.ended(0x87)
        assert four.closed()
        assert stream.ended()
        while page.ended() is False:
            pass
        assert bob.quiet()
        assert Mqtt(broker, user="ann", password=password("ann"), version=5).connack.code == 0x87
        change(broker, tmp_path, CLOSED)
        assert broker.tcp("padded").closed()


@pytest.mark.parametrize("how", ["removed", "changed"])
def test_a_login_ends_with_its_password(tmp_path: Path, how: str) -> None:
    with guarded(tmp_path, SECRETS) as broker:
        boss = login(broker, "boss")
        boss.subscribe("#")
        ann = login(broker, "ann", "mine", clean=False, version=5, properties={f.SESSION_EXPIRY: 9999},
                    will=Will(b"open/will", b"m"))  # fmt: skip
        ann.subscribe("#", qos=1)
        stream = Events(broker, **as_user("ann"))
        write_users(tmp_path, "bob", "boss")
        if how == "changed":
            text = (tmp_path / "users.toml").read_text()
            (tmp_path / "users.toml").write_text(text.replace('users."bob"', 'users."ann"'))
        reload(broker)
        assert ann.ended(0x87)
        assert stream.ended()
        assert get(broker, "/v1/topics", **as_user("ann")).code == "bad_password"
        assert Mqtt(broker, user="ann", password=password("ann")).connack.code == 4
        post(broker, "open/x", b"", **as_boss())
        assert boss.get().topic == b"open/x", "not its will"
        write_users(tmp_path, "ann", "bob", "boss")
        reload(broker)
        back = login(broker, "ann", "mine", clean=False)
        assert back.connack.present is (how == "changed"), "a user that is gone leaves no session behind"
