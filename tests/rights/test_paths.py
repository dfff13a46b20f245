"""`#` is allowed and `secret/x` is not: on every path by which a message can reach someone.

Each test has boss, who may everything, publish `secret/x` and then `open/x`; whoever may not have the first gets the
second next.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.mqtt import Mqtt
from flow.peers import FRAMES
from flow.wires import TypedSubscriber, datagram, delivery, padded, padded_publish, publication
from rights.guarded import SECRETS, as_boss, as_user, guarded, login, write_users
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Publish, Will
from web.calls import LINES, Events, Said, call, get, post
from web.websocket import WebSocket

ALL = {"soh": b"S#/#", "pipe": b"S|#", "semicolon": b"s#"}
ACKS = {"soh": b"A#/#", "pipe": b"Hello Subscriber!"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with guarded(tmp_path_factory.mktemp("rights"), SECRETS) as made:
        yield made


def both(broker: Broker, **more: str) -> None:
    """The secret, then what is open; both on disk when this returns."""
    query = "?retain=1" if more.pop("retain", "") else ""
    for topic in ("secret/x", "open/x"):
        said = post(broker, f"{topic}{query}", topic.encode(), **as_boss())
        assert said.status == 200, said


@pytest.mark.parametrize("dialect", ALL)
def test_live_over_udp(broker: Broker, dialect: str) -> None:
    peer = broker.udp()
    peer.send(ALL[dialect])
    if dialect in ACKS:
        assert peer.receive() == ACKS[dialect]
    else:
        assert peer.ask(b"P|$|").startswith(b"ERROR"), "answered after the subscription"
    both(broker)
    assert peer.receive() == FRAMES[dialect] % (b"open/x", b"open/x")


@pytest.mark.parametrize("dialect", ALL)
def test_a_secret_alone_cannot_be_subscribed_to_over_udp(broker: Broker, dialect: str) -> None:
    peer, before = broker.udp(), dropped(broker)
    peer.send({"soh": b"Ssecret/x", "pipe": b"S|secret/x", "semicolon": b"ssecret/x"}[dialect])
    if dialect == "pipe":
        assert peer.receive().startswith(b"ERROR: not allowed")
    wait_for(lambda: dropped(broker) == before + 1)


@pytest.mark.parametrize("dialect", ALL)
def test_publishing_a_secret_over_udp(broker: Broker, dialect: str) -> None:
    boss, peer, before = login(broker, "boss"), broker.udp(), dropped(broker)
    boss.subscribe("#")
    for topic in (b"secret/x", b"open/x"):
        peer.send({"soh": b"\x01%b\x02m", "pipe": b"P|%b|m", "semicolon": b"p%b;m"}[dialect] % topic)
    if dialect == "pipe":
        assert peer.receive().startswith(b"ERROR: not allowed")
        assert peer.receive() == b"Hello Publisher!"
    assert boss.get().topic == b"open/x"
    assert dropped(broker) == before + 1


def dropped(broker: Broker, reason: str = "not_allowed") -> int:
    counts: dict[str, int] = get(broker, "/v1/stats", **as_boss()).json["dropped"]
    return counts.get(reason, 0)


def test_padded(broker: Broker) -> None:
    boss = login(broker, "boss")
    boss.subscribe("#")
    both(broker)
    refused = broker.tcp("padded")
    refused.send(padded(b"Subscribe", b"secret/x") + padded(b"Subscribe", b"open/x"))
    assert refused.receive(64) == padded(b"SubAck"), "one, for the second"
    history = refused.receive(192 + 6)
    assert history == delivery(b"open/x", b"open/x")
    publisher = broker.tcp("padded")
    publisher.send(publication(b"secret/x", b"m"))
    assert publisher.closed(), "it must not think that its message was taken"
    padded_publish(broker.tcp("padded"), b"open/y", b"m")
    assert [boss.get().topic for _ in range(3)] == [b"secret/x", b"open/x", b"open/y"]


def test_typed(broker: Broker) -> None:
    reader = TypedSubscriber(broker, b"T1", b"secret/x", b"open/x")
    reader.settle()
    both(broker)
    assert reader.take()[:50].rstrip(b"\0") == b"open/x"
    before = dropped(broker)
    broker.udp("typed").send(datagram(b"secret/x", b"m"))
    wait_for(lambda: dropped(broker) == before + 1)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live_over_mqtt(broker: Broker, version: int, qos: int) -> None:
    ann = login(broker, "ann", version=version)
    denied = 0x87 if version == 5 else 0x80
    assert ann.subscribe("#", "secret/x", "secret/#", "+/x", qos=qos) == [qos, denied, denied, qos]
    both(broker)
    assert ann.get().topic == b"open/x"
    assert ann.quiet()


@pytest.mark.parametrize("version", [4, 5])
def test_publishing_a_secret_over_mqtt(broker: Broker, version: int) -> None:
    boss, ann = login(broker, "boss"), login(broker, "ann", version=version)
    boss.subscribe("#", qos=2)
    reason = 0x87 if version == 5 else 0
    for qos in range(3):
        before = dropped(broker)
        ack = ann.publish("secret/x", b"m", qos)
        assert ack is None or ack.reason == reason
        assert ann.quiet()
        assert dropped(broker) == before + 1
    ann.publish("secret/x", b"m", 1, retain=True)
    ann.publish("open/y", b"m", 1)
    assert boss.get().topic == b"open/y"


def test_secrets_among_others_in_one_write(broker: Broker) -> None:
    """Topics that change are looked at together, those that repeat once."""
    boss, ann, before = login(broker, "boss"), login(broker, "ann"), dropped(broker)
    boss.subscribe("#")
    topics = [b"open/%d" % (number % 7) for number in range(100)]
    secrets = [b"secret/%d" % number for number in range(10)] + [b"secret/x"] * 20
    mixed = [*topics[:50], *secrets, *topics[50:], b"open/last"]
    ann.tcp.send(b"".join(Publish(topic, b"m").encode(4) for topic in mixed))
    assert [boss.get().topic for _ in range(101)] == [*topics, b"open/last"]
    assert dropped(broker) == before + len(secrets)


@pytest.mark.parametrize("over", ["tcp", "websocket"])
def test_mqtt_by_other_ways(broker: Broker, over: str) -> None:
    """Live, retained, replayed and published, on the listener that tells dialects apart and over WebSocket."""
    more = {"over": WebSocket(broker)} if over == "websocket" else {"kind": over}
    ann = login(broker, "ann", version=5, **more)
    both(broker, retain="1")
    assert ann.subscribe("#", "secret/x", qos=1) == [1, 0x87]
    assert ann.get().topic == b"open/x"
    both(broker)
    assert ann.get().topic == b"open/x"
    assert ann.subscribe("secret/#", properties={f.USER: [("smb-replay", "all")]}) == [0x87]
    assert ann.publish("secret/x", b"m", 1).reason == 0x87  # type: ignore[union-attr]
    assert ann.quiet()
    forget(broker)


def test_a_topic_alias_does_not_hide_a_secret(broker: Broker) -> None:
    boss, ann = login(broker, "boss"), login(broker, "ann", version=5)
    boss.subscribe("#")
    for topic, number in (("secret/x", 1), ("", 2)):
        ann.send(Publish(topic.encode(), b"m", 1, packet_id=number, properties={f.TOPIC_ALIAS: 1}))
        assert ann.next().reason == 0x87  # type: ignore[union-attr]
    ann.publish("open/y", b"m", 1)
    assert boss.get().topic == b"open/y"


@pytest.mark.parametrize("version", [4, 5])
def test_retained(broker: Broker, version: int) -> None:
    both(broker, retain="1")
    boss = login(broker, "boss", version=version)
    boss.subscribe("#")
    assert {boss.get().topic for _ in range(2)} == {b"secret/x", b"open/x"}
    ann = login(broker, "ann", version=version)
    ann.subscribe("#")
    assert ann.get().topic == b"open/x"
    assert ann.quiet()
    forget(broker)


def forget(broker: Broker) -> None:
    """What was retained."""
    for topic in ("secret/x", "open/x"):
        assert post(broker, f"{topic}?retain=1", b"", **as_boss()).status == 200


@pytest.mark.parametrize("version", [4, 5])
def test_kept_while_away(broker: Broker, version: int) -> None:
    more = {"version": version, "clean": False, "properties": {f.SESSION_EXPIRY: 1000} if version == 5 else {}}
    ann = login(broker, "ann", f"away-{version}", **more)
    ann.subscribe("#", qos=1)
    ann.disconnect()
    both(broker)
    ann = login(broker, "ann", f"away-{version}", **more)
    assert ann.get().topic == b"open/x"
    assert ann.quiet()


def test_shared_with_someone_who_may(broker: Broker) -> None:
    """The secret goes to the member who may have it, each time; and is lost if there is none."""
    ann, boss = login(broker, "ann", version=5), login(broker, "boss", version=5)
    assert ann.subscribe("$share/g/secret/#") == [0x87]
    assert ann.subscribe("$share/g/#", qos=1) == [1]
    assert boss.subscribe("$share/g/#", qos=1) == [1]
    for _ in range(4):
        assert post(broker, "secret/x", b"m", **as_boss()).status == 200
    assert [boss.get().topic for _ in range(4)] == [b"secret/x"] * 4
    assert ann.quiet()
    boss.disconnect()
    both(broker)
    assert ann.get().topic == b"open/x"


@pytest.mark.parametrize("wanted", ["all", "from=0", "last=1000", "since=2020-01-01"])
def test_replay(broker: Broker, wanted: str) -> None:
    both(broker)
    ann = login(broker, "ann", version=5)
    replay = {f.USER: [("smb-replay", wanted)]}
    assert ann.subscribe("secret/#", properties=replay) == [0x87]
    assert ann.subscribe("#", qos=1, properties=replay) == [1]
    everything = [row["topic"] for row in get(broker, "/v1/messages?filter=%23", **as_boss()).rows]
    allowed = [topic for topic in everything if not topic.startswith("secret")]
    assert [ann.get().topic.decode() for _ in allowed] == allowed
    assert ann.quiet()


def test_history_over_http(broker: Broker) -> None:
    both(broker)
    for query in ("", "?filter=%23", "?filter=%2B/x", "?before=latest", "?before=latest&filter=%23&limit=3"):
        seen = {row["topic"] for row in get(broker, f"/v1/messages{query}", **as_user("ann")).rows}
        assert "open/x" in seen, query
        assert not [topic for topic in seen if topic.startswith("secret")], query
        if "limit" not in query:
            assert "secret/x" in {row["topic"] for row in get(broker, f"/v1/messages{query}", **as_boss()).rows}
    for query in ("?filter=secret/%23", "?topic=secret/x", "?filter=secret/x&before=latest"):
        assert get(broker, f"/v1/messages{query}", **as_user("ann")).status == 403
    page = get(broker, "/v1/messages?before=latest&limit=1", **as_user("ann")).rows
    assert [row["topic"] for row in page] == ["open/x"]


def test_the_list_of_topics(broker: Broker) -> None:
    both(broker)
    assert "secret/x" in get(broker, "/v1/topics", **as_boss()).body.decode()
    for query in ("", "?search=secret", "?order=count"):
        said = get(broker, f"/v1/topics{query}", **as_user("ann"))
        assert said.status == 200
        assert "secret" not in said.body.decode()


@pytest.mark.parametrize("start", ["", "&from=earliest"])
def test_streams(broker: Broker, start: str) -> None:
    both(broker)
    stream = Events(broker, f"?filter=%23{start}", **as_user("ann"))
    both(broker)
    post(broker, "open/last", b"", **as_boss())
    topics = []
    while (topic := stream.next().data["topic"]) != "open/last" or stream_is_old(topics, start):
        topics.append(topic)
    stream.close()
    assert "open/x" in topics
    assert not [topic for topic in topics if topic.startswith("secret")]


def stream_is_old(topics: list[str], start: str) -> bool:
    """Others of this module have published `open/last` before: from the beginning, the last but counts."""
    return bool(start) and topics.count("open/x") < 2


QUICK = """
import sys
from smbroker.cli.broker import main
from smbroker.server import reader

reader.SILENCE = 0.5
sys.exit(main())
"""


def test_a_stream_says_that_it_is_there_while_only_what_it_may_not_have_comes(tmp_path: Path) -> None:
    write_users(tmp_path, "ann", "boss")
    rules, program = tmp_path / "rules.toml", (sys.executable, "-c", QUICK)
    rules.write_text(SECRETS)
    with Broker("--rules", str(rules), kinds=("web",), data=tmp_path, program=program) as broker:
        stream = Events(broker, "?filter=%23", **as_user("ann"))
        heard = threading.Event()

        def publish() -> None:
            while not heard.is_set():
                post(broker, "secret/x", b"m", **as_boss())

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            assert [stream.line() for _ in range(3)] == [":", "", ":"]
        finally:
            heard.set()
            publisher.join()


def test_a_stream_of_secrets_is_refused(broker: Broker) -> None:
    assert get(broker, "/v1/subscribe?filter=secret/%23", **as_user("ann")).status == 403
    assert get(broker, "/v1/live?tail=1&filter=secret/%23", **as_user("ann")).status == 403


def test_the_page_s_own_stream(broker: Broker) -> None:
    stream = Events(broker, "?tail=1", path="/v1/live", **as_user("ann"))
    assert stream.next().kind == "figures"
    both(broker)
    while (event := stream.next()).kind != "messages":
        pass
    stream.close()
    assert [one["topic"] for one in event.data["messages"]] == ["open/x"]
    assert event.data["seen"] == 1


def test_publishing_over_http(broker: Broker) -> None:
    ann = as_user("ann")
    assert post(broker, "secret/x", b"m", **ann).status == 403
    lines = [{"topic": topic, "payload": "m"} for topic in ("open/a", "secret/x")]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    before = get(broker, "/v1/stats", **as_boss()).json["log"]["next_offset"]
    said = call(broker, "POST", "/v1/publish", body, content_type=LINES, **ann)
    assert (said.status, said.code) == (403, "not_allowed")
    assert get(broker, "/v1/stats", **as_boss()).json["log"]["next_offset"] == before, "all or nothing"


def test_the_sink_obeys(broker: Broker) -> None:
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"topic": ["open/s", "secret/x", "$stats/a"], "payload": [b"1", b"2", b"3"]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body, kind = sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"

    def commit(query: str, **who: str) -> Said:
        stage = call(broker, "POST", "/v1/stages", body, content_type=kind, **who).json["stage"]
        order = json.dumps({"stages": [stage], "skip_bad": True}).encode()
        return call(broker, "POST", f"/v1/batches/{query}/0", order, **who)

    assert commit("pipeline", **as_user("ann")).json["count"] == 1
    assert commit("pipeline", **as_user("ann")).json["repeated"]
    assert commit("pipeline", **as_boss()).json["count"] == 2, "topics with $ are the pipelines' alone"
    token = (broker.data / "pipeline.token").read_text().strip()
    assert commit("pipeline", authorization=f"Bearer {token}").json["count"] == 3
    assert post(broker, "$stats/x", b"m", **as_boss()).code == "topic_reserved"


def test_wills(broker: Broker) -> None:
    boss = login(broker, "boss", version=5)
    boss.subscribe("#", "$x/#")
    for topic in (b"secret/will", b"$x/will", b"$SYS/x"):
        for version, code in ((4, 5), (5, 0x87)):
            refused = Mqtt(broker, "", version=version, will=Will(topic, b"m"), user="ann", password=b"password of ann")
            assert refused.connack.code == code
            assert refused.closed()
    ann = login(broker, "ann", will=Will(b"open/will", b"m"))
    ann.drop()
    assert boss.get().topic == b"open/will"


def test_whoever_published_it(tmp_path: Path) -> None:
    """In each dialect, over HTTP, and as a will: the same for who may not have it."""
    rules = '[[allow]]\nanyone = true\ntopics = "#"\n[[deny]]\nuser = "ann"\ntopics = "secret/#"\n'
    with guarded(tmp_path, rules) as broker:
        boss, ann, peer = login(broker, "boss"), login(broker, "ann"), broker.udp()
        for client in (boss, ann):
            assert client.subscribe("#", qos=1) == [1]
        stream = Events(broker, "?filter=%23", **as_user("ann"))
        ways: dict[str, Callable[[bytes], object]] = {
            "soh": lambda topic: peer.send(b"\x01%b\x02m" % topic),
            "pipe": lambda topic: peer.send(b"P|%b|m" % topic),
            "semicolon": lambda topic: peer.send(b"p%b;m" % topic),
            "typed": lambda topic: broker.udp("typed").send(datagram(topic, b"m")),
            "padded": lambda topic: padded_publish(broker.tcp("padded"), topic, b"m"),
            "mqtt": lambda topic: login(broker, "bob").publish(topic.decode(), b"m", 1),
            "http": lambda topic: post(broker, topic.decode(), b"m", **as_user("bob")),
            "will": lambda topic: login(broker, "bob", will=Will(topic, b"m")).drop(),
        }
        for way, publish in ways.items():
            for topic in (b"secret/x", b"open/x"):
                publish(topic)
                assert boss.get().topic == topic, way
            assert ann.get().topic == b"open/x", way
            assert stream.next().data["topic"] == "open/x", way
        stream.close()


def test_what_the_broker_tells_of_itself_needs_a_right(tmp_path: Path) -> None:
    rules = '[[allow]]\nuser = ["ann", "boss"]\ntopics = "#"\n[[allow]]\nuser = "boss"\nsubscribe = "$SYS/#"\n'
    with guarded(tmp_path, rules, "--no-log", kinds=("web",)) as small:
        for path in ("/v1/stats", "/v1/clients", "/v1/pipelines", "/metrics", "/v1/live"):
            assert get(small, path, **as_user("ann")).code == "not_allowed"
            assert path == "/v1/live" or get(small, path, **as_boss()).status == 200
        assert get(small, "/health").json == {"status": "ok"}
        assert len(get(small, "/health", **as_boss()).json) > 1


def test_refusals_are_counted_where_people_look(broker: Broker) -> None:
    post(broker, "secret/x", b"m", **as_user("ann"))
    metrics = get(broker, "/metrics", **as_boss()).body.decode()
    assert 'smb_dropped_total{reason="not_allowed"}' in metrics


def test_tables_show_the_rows_of_topics_that_may_be_replayed(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    import pyarrow as pa

    from smbroker.spark.tables import TableWriter

    topics = ["open/a", "secret/x", "open/b"]
    rows = [{"offset": number, "topic": topic, "text": "t"} for number, topic in enumerate(topics)]
    TableWriter(tmp_path / "tables" / "archive").write(pa.Table.from_pylist(rows), "query", 0)
    TableWriter(tmp_path / "tables" / "rooms").write(pa.Table.from_pylist([{"room": "x", "n": 1}]), "query", 0)
    with guarded(tmp_path, SECRETS, kinds=("web",)) as small:
        seen = get(small, "/v1/tables/archive", **as_user("ann")).json["rows"]
        assert [row["topic"] for row in seen] == ["open/a", "open/b"]
        assert get(small, "/v1/tables/archive?topic=secret/x", **as_user("ann")).json["rows"] == []
        assert get(small, "/v1/tables/rooms", **as_user("ann")).json["rows"] == [], "nobody knows of what it is made"
        assert len(get(small, "/v1/tables/archive", **as_boss()).json["rows"]) == 3
        assert len(get(small, "/v1/tables/rooms", **as_boss()).json["rows"]) == 1
