"""Who someone is: passwords, tokens, ids that are another's, guessing; and what ids can make of placeholders."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow.house import Broker, wait_for
from flow.mqtt import Mqtt
from flow.wires import identity, subscription
from rights.guarded import SECRETS, TOKEN, as_boss, as_user, change, guarded, login, password, reload, write_users
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Connack, Connect, Publish, Results, Subscribe, Topics
from web.calls import Said, call, get, post, raw

OWN = """
[[allow]]
user = "*"
topics = "users/%u/#"

[[allow]]
anyone = true
client = "*"
topics = ["clients/%c/#", "prefix/x-%c"]

[[allow]]
user = "boss"
topics = ["#", "$SYS/#"]

[[deny]]
user = ["ann", "bob"]
publish = "clients/%c/log"
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Where everybody has what is named after them, and boss has all."""
    with guarded(tmp_path_factory.mktemp("own"), OWN) as made:
        yield made


def test_mqtt_says_what_is_wrong(tmp_path: Path) -> None:
    rules = '[[allow]]\nuser = "ann"\ntopics = "#"\n'
    with guarded(tmp_path, rules, "--no-log", kinds=("mqtt",)) as broker:
        for version, wrong, closed in ((3, 4, 5), (4, 4, 5), (5, 0x86, 0x87)):
            assert Mqtt(broker, "c", version=version).connack.code == closed
            for user, secret in (("ann", b"wrong"), ("ann", None), ("nobody", b"")):
                refused = Mqtt(broker, "c", version=version, user=user, password=secret)
                assert refused.connack.code == wrong
                assert refused.closed()
            assert Mqtt(broker, "c", version=version, user="bob", password=password("bob")).connack.code == closed
            login(broker, "ann", "c", version=version)
        method = {f.AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
        assert Mqtt(broker, "c", version=5, properties=method).connack.code == 0x8C, "no extended authentication"


def test_packets_that_come_while_the_password_is_checked_are_not_lost(house: Broker) -> None:
    client = Mqtt(house, version=5, connect=False)
    packets = [
        Connect(5, "c", user="ann", password=password("ann")),
        Subscribe(1, [Topics(b"users/#", 1)]),
        Publish(b"users/ann", b"m", 0),
    ]
    client.tcp.send(b"".join(packet.encode(5) for packet in packets))
    assert client.expect(Connack).code == 0
    assert client.expect(Results).codes == [1]
    assert client.get().topic == b"users/ann"


def test_the_same_id_under_another_user(tmp_path: Path) -> None:
    with guarded(tmp_path, SECRETS) as broker:
        for version, refused in ((4, 2), (5, 0x85)):
            name = f"mine-{version}"
            ann = login(broker, "ann", name, clean=False)
            ann.subscribe("open/#", qos=1)
            for clean in (True, False):
                bob = Mqtt(broker, name, version=version, clean=clean, user="bob", password=password("bob"))
                assert bob.connack.code == refused
                assert Mqtt(broker, name, version=version, clean=clean).connack.code == refused, "nor somebody unknown"
            assert ann.quiet(), "it was not even disturbed"
            ann.disconnect()
            post(broker, "open/x", b"", **as_boss())
            for clean in (True, False):
                bob = Mqtt(broker, name, version=version, clean=clean, user="bob", password=password("bob"))
                assert bob.connack.code == refused
            ann = login(broker, "ann", name, clean=False)
            assert ann.connack.present
            assert ann.get().topic == b"open/x"
            ann.disconnect()
    with guarded(tmp_path, SECRETS) as broker:  # after a restart too
        assert Mqtt(broker, "mine-4", user="bob", password=password("bob")).connack.code == 2
        assert login(broker, "ann", "mine-4", clean=False).connack.present


def test_an_id_of_somebody_unknown_makes_room_for_a_user(tmp_path: Path) -> None:
    with guarded(tmp_path, SECRETS) as broker:
        unknown = Mqtt(broker, "lamp", clean=False)
        unknown.subscribe("open/#", qos=1)
        ann = login(broker, "ann", "lamp", clean=False)
        assert not ann.connack.present, "nothing of the other's is taken over"
        assert unknown.closed()


BAD_IDS = ["#", "+", "a/b", "a\nb", "/", "a/#", "+/x", "$SYS"]


@pytest.mark.parametrize("client", BAD_IDS)
def test_ids_are_no_filters(house: Broker, client: str) -> None:
    bob, boss = login(house, "bob", client, version=5), login(house, "boss", version=5)
    own = f"clients/{client}/x" if not set(client) & set("#+") else "clients/other/x"
    for wanted in ("clients/#", "clients/+/x", "clients/a/b/x", "prefix/#", "#", "+/+/+", "$SYS/#"):
        expected = {"#": 0, "+/+/+": 0}.get(wanted, 0x87)  # these meet users/bob/#, and bring that alone
        assert bob.subscribe(wanted) == [expected], wanted
    for topic in (own, "clients/other/x", "prefix/x-a", "users/ann/x", "users/bob/last"):
        boss.publish(topic, b"m", 1)
    assert bob.get().topic == b"users/bob/last"
    for topic in (own, "clients/other/x", "users/ann/x", "clients/other/log"):
        assert bob.publish(topic, b"m", 1).reason == 0x87, topic  # type: ignore[union-attr]


def test_typed_ids_are_no_filters(house: Broker) -> None:
    """The subscriptions of an id such as `#` bring nothing; one that is plain gets its own."""
    for name in (b"#", b"+", b"a/b", b"a\nb"):
        client = house.tcp("typed")
        topics = (b"clients/plain/x", b"clients/%s/x" % name, b"clients/a/b/x")
        client.send(identity(name) + b"".join(map(subscription, topics)))
        assert client.closed(), "nothing is allowed to it"
    plain = house.tcp("typed")
    plain.send(identity(b"plain") + subscription(b"clients/a/b/x") + subscription(b"clients/plain/x"))
    wait_for(lambda: get(house, "/v1/stats", **as_boss()).json["subscriptions"].get("typed") == 1)
    for topic in ("clients/a/b/x", "clients/%23/x", "clients/plain/x"):
        assert post(house, topic, b"m", **as_boss()).status == 200
    assert plain.receive(1570).startswith(b"clients/plain/x\0")


def test_http_by_password_by_token_and_by_neither(tmp_path: Path) -> None:
    rules = '[[allow]]\nuser = ["ann", "boss"]\ntopics = "#"\n'
    with guarded(tmp_path, rules, kinds=("web",)) as broker:
        paths = ("/v1/messages", "/v1/topics", "/v1/subscribe", "/v1/tables/x", "/v1/stats", "/v1/live?tail=1")
        for path in paths:
            said = get(broker, path)
            assert (said.status, said.code) == (401, "not_allowed"), path
            assert said.headers["www-authenticate"].startswith("Bearer"), "browsers do not ask by themselves"
        assert post(broker, "a", b"m").status == 401
        assert call(broker, "POST", "/v1/stages", b"", content_type="application/vnd.apache.arrow.stream").status == 401
        assert post(broker, "a", b"m", **as_user("ann")).status == 200
        assert post(broker, "a", b"m", **as_boss()).status == 200
        pipeline = (tmp_path / "pipeline.token").read_text().strip()
        assert post(broker, "a", b"m", authorization=f"Bearer {pipeline}").status == 200
        assert get(broker, "/v1/stats", authorization=f"Bearer {pipeline}").status == 200
        assert post(broker, "a", b"m", **as_user("bob")).code == "not_allowed"
        for wrong in ("Basic !!!", "Basic YW5u", "Basic //8=", f"Bearer {TOKEN}x", "Bearer x y"):
            said = post(broker, "a", b"m", authorization=wrong)
            assert said.status == 401, wrong
            assert TOKEN not in said.body.decode()
        assert get(broker, "/").status == 200, "the page itself holds no secrets: it asks for a login"


def test_guessing_is_slowed_down_by_address(tmp_path: Path) -> None:
    with guarded(tmp_path, SECRETS, "--no-log", kinds=("mqtt", "web")) as broker:
        assert get(broker, "/v1/stats", **as_user("ann")).status == 200
        codes = [post(broker, "a", b"m", **as_user("bob", b"guess %d" % number)).status for number in range(30)]
        assert codes[0] == 401
        assert codes[-1] == 429
        assert post(broker, "a", b"m", **as_user("bob")).status == 429, "the right one too: nothing is learned"
        assert Mqtt(broker, user="bob", password=password("bob")).connack.code == 3
        assert get(broker, "/v1/stats", **as_user("ann")).status == 200, "who is in stays in"
        counts = get(broker, "/v1/stats", **as_user("ann")).json["dropped"]
        assert counts["bad_password"] >= 10
        assert counts["too_many_logins"] >= 10


def test_many_logins_at_once_do_not_hold_up_the_rest(tmp_path: Path) -> None:
    """Some are told to come again; messages flow meanwhile; nothing breaks."""
    with guarded(tmp_path, SECRETS, "--no-log", kinds=("mqtt", "udp")) as broker:
        codes: list[int] = []

        def try_one(number: int) -> None:
            codes.append(Mqtt(broker, f"c{number}", user="ann", password=password("ann")).connack.code)

        threads = [threading.Thread(target=try_one, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        peer = broker.udp()
        for _ in range(20):
            assert peer.ask(b"P|open/x|m") == b"Hello Publisher!"
        for thread in threads:
            thread.join(60)
        assert len(codes) == 60
        assert set(codes) <= {0, 3}
        assert 0 in codes


# --- the page's login ---


def enter(broker: Broker, name: str, secret: str, **more: str) -> Said:
    headers = {"origin": f"http://127.0.0.1:{broker.ports['web']}", **more}
    return call(broker, "POST", "/v1/login", json.dumps({"user": name, "password": secret}).encode(), **headers)


def test_the_page_s_login(tmp_path: Path) -> None:
    rules = '[[allow]]\nuser = ["ann", "boss"]\ntopics = ["#", "$SYS/#"]\n'
    with guarded(tmp_path, rules, kinds=("web",)) as broker:
        here = f"http://127.0.0.1:{broker.ports['web']}"
        assert get(broker, "/v1/session").json == {"rights": True, "user": None, "allowed": False}
        assert enter(broker, "ann", "wrong").code == "bad_password"
        assert "set-cookie" not in enter(broker, "ann", "wrong").headers
        said = enter(broker, "ann", "password of ann")
        assert said.json == {"user": "ann"}
        cookie, *parts = said.headers["set-cookie"].split("; ")
        assert {part.lower() for part in parts} == {"httponly", "path=/", "samesite=strict"}
        assert "password" not in cookie
        assert get(broker, "/v1/session", cookie=cookie).json == {"rights": True, "user": "ann", "allowed": True}
        assert get(broker, "/v1/stats", cookie=cookie).status == 200
        assert post(broker, "a", b"m", cookie=cookie, origin=here).status == 200
        assert post(broker, "a", b"m", cookie=cookie, sec_fetch_site="same-origin").status == 200
        for foreign in (
            {},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"origin": here.replace(":", ":1", 2)},
            {"origin": here, "sec_fetch_site": "cross-site"},
        ):
            said = post(broker, "a", b"m", cookie=cookie, **foreign)
            assert (said.status, said.code) == (403, "bad_origin"), foreign
        assert get(broker, "/v1/stats", cookie=cookie, host="evil.example").code == "bad_host"
        assert enter(broker, "ann", "password of ann", origin="http://evil.example").code == "bad_origin"
        for forged in ("smb-session=x", "smb-session=", f"smb-session={TOKEN}"):
            assert get(broker, "/v1/stats", cookie=forged).status == 401
        assert call(broker, "POST", "/v1/logout", cookie=cookie, origin=here).status == 200
        assert get(broker, "/v1/stats", cookie=cookie).status == 401


def test_a_login_ends_with_the_user(tmp_path: Path) -> None:
    with guarded(tmp_path, SECRETS, kinds=("web",)) as broker:
        cookie = enter(broker, "ann", "password of ann").headers["set-cookie"].partition(";")[0]
        assert get(broker, "/v1/session", cookie=cookie).json["user"] == "ann"
        write_users(tmp_path, "boss")
        reload(broker)
        assert get(broker, "/v1/session", cookie=cookie).json["user"] is None


def test_a_login_that_is_none_is_refused(house: Broker) -> None:
    here = f"http://127.0.0.1:{house.ports['web']}"
    for body in (b"", b"[]", b"{}", b'{"user": 1, "password": "x"}', b"[" * 2000, b"\xff"):
        assert call(house, "POST", "/v1/login", body, origin=here).code == "bad_body"
    assert call(house, "POST", "/v1/login", b" " * 5000, origin=here).code == "body_too_long"


def test_who_leaves_in_the_middle_of_a_login_is_counted_and_nothing_more(house: Broker) -> None:
    """The house is asked at its end whether it told of a bug."""
    head = "POST /v1/login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 9\r\n\r\n{"
    raw(house, head.encode()).close()
    wait_for(lambda: get(house, "/v1/stats", **as_boss()).json["dropped"].get("disconnected"))


def test_without_rules_there_is_nothing_to_log_in_to(tmp_path: Path) -> None:
    with Broker(kinds=("web",), data=tmp_path) as broker:
        assert get(broker, "/v1/session").json == {"rights": False, "user": None, "allowed": True}
        assert enter(broker, "ann", "x").code == "bad_password"
        assert post(broker, "a", b"m", authorization="Basic x").status == 200, "a proxy's business, not ours"


def test_secrets_are_not_told(tmp_path: Path) -> None:
    """Neither in what the broker says of itself nor on its console."""
    with guarded(tmp_path, SECRETS) as broker:
        login(broker, "ann", "c1", clean=False)
        Mqtt(broker, user="ann", password=b"wrong-secret")
        post(broker, "open/x", b"m", **as_boss())
        change(broker, tmp_path, SECRETS)
        paths = ("/v1/stats", "/v1/clients", "/v1/messages", "/metrics", "/health", "/v1/pipelines")
        told = "".join(get(broker, path, **as_boss()).body.decode() for path in paths)
    told += "\n".join(broker.err.all + broker.out.all)
    for secret in ("password of", "wrong-secret", TOKEN, "scrypt:", "sha256:"):
        assert secret not in told
