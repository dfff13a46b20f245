"""semicolon over a real socket: every rule of its section in DIALECTS.md, and the broker's console for it."""

import re
import signal
from collections.abc import Iterator

import pytest

from flow.house import Broker, Udp
from flow.peers import Peer, Terminal, counts, frozen, relay, settled, signalled, started
from flow.wires import config

YELLOW, PLAIN = "\x1b[33m", "\x1b[0m"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("-s", "1000", kinds=("udp",)) as broker:
        yield broker


@pytest.fixture(scope="module")
def prefix_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = config(tmp_path_factory.mktemp("prefix"), "[semicolon]\nprefix_match = true")
    with Broker(*settings, kinds=("udp",)) as broker:
        yield broker


def subscriber(broker: Broker, *topics: bytes) -> Udp:
    """There is no answer, but what comes next on the same socket is read after it."""
    client = broker.udp()
    for topic in topics:
        client.send(b"s" + topic)
    return client


def check_matches(broker: Broker, subscription: bytes, wanted: list[bytes], unwanted: list[bytes]) -> None:
    client = subscriber(broker, subscription, b"the-last")
    for topic in [*unwanted, *wanted, b"the-last"]:
        client.send(b"p" + topic + b";m")
    assert [client.receive() for _ in [*wanted, 1]] == [topic + b";m" for topic in [*wanted, b"the-last"]]
    client.send(b"u")


MESSAGES = [b"", b"text", b";", b"a;b;", b"\0", b"#", bytes(range(256)), b"\n", b"m" * 500]


def test_the_message_keeps_all_its_bytes_and_the_order_holds(broker: Broker) -> None:
    client, publisher = subscriber(broker, b"as-is"), broker.udp()
    settled(broker)
    for message in MESSAGES:
        publisher.send(b"pas-is;" + message)
    assert [client.receive() for _ in MESSAGES] == [b"as-is;" + message for message in MESSAGES]


MATCHES = [
    (b"a", [b"a"], [b"b", b"a/b", b"a/", b"aa", b"A"]),
    (b"a/b", [b"a/b"], [b"a", b"a/b/c", b"a/c", b"b/b"]),
    (b"a/", [b"a/"], [b"a", b"a/b"]),
    (b"a/#/c", [b"a/b/c", b"a//c"], [b"a/c", b"a/b/b/c", b"a/b/c/d", b"a/b", b"b/b/c"]),
    (b"a/#", [b"a/b", b"a/b/c", b"a/b/c/d", b"a/"], [b"a", b"b/a", b"aa/b"]),
    (b"#", [b"a", b"a/b", b"a/b/c", b"/", b"+"], [b"$a", b"$a/b"]),
    (b"#/b", [b"a/b", b"/b"], [b"b", b"a/b/c", b"a/a/b", b"a", b"$a/b"]),
    (b"#/b/#", [b"a/b/c", b"a/b/c/d"], [b"a/b", b"b/c", b"a/c/b", b"$a/b/c"]),
    (b"a/#/#", [b"a/b/c", b"a/b/c/d"], [b"a", b"a/b"]),
    (b"#/#", [b"a/b", b"a/b/c"], [b"a", b"$a/b"]),
    (b"#/#/#/d", [b"a/b/c/d"], [b"a/b/d", b"d", b"a/b/c/d/e"]),
    (b"a/#/c/#/e", [b"a/b/c/d/e"], [b"a/b/c/e", b"a/b/d/d/e"]),
    (b"a/+", [b"a/+"], [b"a/b"]),
    (b"+", [b"+"], [b"a"]),
    (b"+/#", [b"+/b"], [b"a/b"]),
    (b"#/+", [b"a/+"], [b"a/b"]),
    ("größe/#".encode(), ["größe/é".encode()], [b"gr/x"]),
]


@pytest.mark.parametrize(("subscription", "wanted", "unwanted"), MATCHES)
def test_what_a_subscription_matches(
    broker: Broker, subscription: bytes, wanted: list[bytes], unwanted: list[bytes]
) -> None:
    check_matches(broker, subscription, wanted, unwanted)


def test_a_hash_that_is_no_whole_level_is_an_ordinary_character(broker: Broker) -> None:
    client = subscriber(broker, b"a#", b"x/b#/c")
    publisher = broker.udp()
    settled(broker)
    for topic in (b"ab", b"a/b", b"x/bb/c", b"a#", b"x/b#/c"):
        publisher.ask(b"P|" + topic + b"|m")  # semicolon itself cannot publish such a topic
    assert [client.receive(), client.receive()] == [b"a#;m", b"x/b#/c;m"]


PREFIX_MATCHES = [
    (b"a", [b"a", b"a/b", b"a/b/c", b"a/"], [b"b", b"aa", b"aa/b", b"b/a"]),
    (b"a/b", [b"a/b", b"a/b/c", b"a/b/c/d"], [b"a", b"a/bb", b"a/c"]),
    (b"a/#", [b"a/b", b"a/b/c"], [b"a"]),
    (b"a/#/c", [b"a/b/c"], [b"a/b/c/d", b"a/b"]),
    (b"#", [b"a", b"a/b"], [b"$a"]),
]


@pytest.mark.parametrize(("subscription", "wanted", "unwanted"), PREFIX_MATCHES)
def test_with_prefix_match_a_subscription_also_matches_what_is_below_it(
    prefix_broker: Broker, subscription: bytes, wanted: list[bytes], unwanted: list[bytes]
) -> None:
    check_matches(prefix_broker, subscription, wanted, unwanted)


def test_prefix_match_is_for_semicolon_alone(prefix_broker: Broker) -> None:
    client = prefix_broker.udp()
    client.ask(b"S|pre")
    client.ask(b"Spre/fix")
    for topic in (b"pre/fix/deep", b"pre/fix", b"pre"):
        client.send(b"p" + topic + b";m")
    assert [client.receive(), client.receive()] == [b"\x01pre/fix\x02m", b"TOPIC: pre - MESSAGE: m"]


def test_nothing_is_acknowledged(broker: Broker) -> None:
    client = broker.udp()
    for datagram in (b"sno/ack", b"sno/ack", b"pother;m", b"u", b"u", b"p", b"s", b"pa#;m", b"p" * 509):
        client.send(datagram)
    assert client.ask(b"Sthe/next") == b"Athe/next"


@pytest.mark.parametrize("datagram", [b"u", b"uone", b"uother", b"u;\0\xff", b"u" * 508])
def test_u_ends_all_subscriptions_of_that_address_and_port(broker: Broker, datagram: bytes) -> None:
    client, neighbour = subscriber(broker, b"one", b"two/#", b"last"), subscriber(broker, b"one")
    client.send(datagram)
    client.send(b"slast")
    for topic in (b"one", b"two/x", b"last"):
        client.send(b"p" + topic + b";m")
    assert client.receive() == b"last;m"
    assert neighbour.receive() == b"one;m", "another port keeps its own"


def test_u_leaves_the_other_dialects_alone(broker: Broker) -> None:
    client = broker.udp()
    assert client.ask(b"Sleave/me") == b"Aleave/me"
    assert client.ask(b"S|leave/me") == b"Hello Subscriber!"
    client.send(b"sleave/me")
    client.send(b"u")
    client.send(b"pleave/me;m")
    assert {client.receive(), client.receive()} == {b"\x01leave/me\x02m", b"TOPIC: leave/me - MESSAGE: m"}
    assert client.ask(b"Sthe/next") == b"Athe/next"


def test_a_subscription_may_follow_its_end(broker: Broker) -> None:
    client = subscriber(broker, b"to-and-fro")
    client.send(b"u")
    client.send(b"pto-and-fro;1")
    client.send(b"sto-and-fro")
    assert client.ask(b"pto-and-fro;2") == b"to-and-fro;2"


def test_order_holds_across_clients_within_one_read(broker: Broker) -> None:
    client, publisher = subscriber(broker), broker.udp()
    with frozen(broker):
        publisher.send(b"porder;before")
        client.send(b"sorder")
        publisher.send(b"porder;within")
        client.send(b"u")
        publisher.send(b"porder;after")
        client.send(b"sorder")
        publisher.send(b"porder;again")
    assert [client.receive(), client.receive()] == [b"order;within", b"order;again"]


# --- limits ---

BAD = {
    b"p": "malformed",
    b"pa": "malformed",
    b"p;m": "topic_empty",
    b"pa/#;m": "topic_wildcard",
    b"p#;m": "topic_wildcard",
    b"pa#b;m": "topic_wildcard",
    b"p\xff;m": "topic_not_utf8",
    b"pa\0;m": "topic_nul",
    b"p" + b"t" * 129 + b";m": "topic_too_long",
    b"pt;" + b"m" * 501: "message_too_long",
    b"pt;" + b"m" * 506: "too_long",
    b"s": "topic_empty",
    b"s\xff": "topic_not_utf8",
    b"s" + b"t" * 129: "topic_too_long",
    b"s" + b"t" * 508: "too_long",
    b"u" * 509: "too_long",
}


def test_what_is_bad_is_warned_of_counted_and_dropped() -> None:
    with relay() as broker:
        everything, client = subscriber(broker, b"#"), subscriber(broker, b"last")
        for datagram in BAD:
            client.send(datagram)
            assert client.ask(b"plast;m") == b"last;m", datagram
            assert everything.receive() == b"last;m", datagram
        assert counts(broker) == {reason: list(BAD.values()).count(reason) for reason in BAD.values()}
        warning = "warning: semicolon {}:{}: ".format(*client.address)
        assert sum(line.startswith(warning) for line in broker.err.all) == len(BAD)


def test_the_default_limits_and_the_datagrams_own_are_met_exactly(broker: Broker) -> None:
    topic = b"t" * 128
    client = subscriber(broker, topic, b"x")
    assert client.ask(b"p" + topic + b";" + b"m" * 378) == topic + b";" + b"m" * 378, "508 bytes came in"
    assert client.ask(b"px;" + b"m" * 500) == b"x;" + b"m" * 500


def test_the_limits_can_be_set_by_options() -> None:
    with relay("-t", "5", "-m", "4", "-s", "2") as broker:
        client = subscriber(broker, b"abcdef", b"abcde")
        client.send(b"pabcde;12345")
        client.send(b"pabcdef;1234")
        assert client.ask(b"pabcde;1234") == b"abcde;1234"
        broker.err.wait("Current Subscribers: 1/2")
        assert counts(broker) == {"topic_too_long": 2, "message_too_long": 1}


def test_the_limits_can_be_raised_by_long_options_up_to_the_datagram() -> None:
    options = ("--max-topic-length", "506", "--max-message-length", "505", "--max-subscribers", "7")
    with relay(*options) as broker:
        topic = b"t" * 506
        client = subscriber(broker, topic, b"x")
        assert client.ask(b"p" + topic + b";") == topic + b";"
        assert client.ask(b"px;" + b"m" * 505) == b"x;" + b"m" * 505
        broker.err.wait("Current Subscribers: 2/7")


def test_towards_subscribers_only_the_508_count() -> None:
    with relay("-t", "10", "-m", "10") as broker:
        client, publisher = subscriber(broker, b"#"), broker.udp()
        settled(broker)
        topic = b"t" * 200
        publisher.ask(b"P|" + topic + b"|" + b"m" * 308)
        publisher.ask(b"P|" + topic + b"|" + b"m" * 307)
        assert client.receive() == topic + b";" + b"m" * 307
        assert counts(broker) == {"semicolon too_long": 1}


def test_a_topic_with_a_semicolon_reaches_other_dialects_but_not_semicolon() -> None:
    with relay() as broker:
        client, publisher = subscriber(broker, b"#"), broker.udp()
        assert publisher.ask(b"Sa;b/#") == b"Aa;b/#"
        assert publisher.ask(b"\x01a;b/c\x02m") == b"\x01a;b/c\x02m"
        publisher.send(b"pa;m")
        assert client.receive() == b"a;m"
        assert counts(broker) == {"semicolon topic_separator": 1}


def test_subscribers_are_pairs_of_address_and_topic_and_limited_to_100() -> None:
    with relay() as broker:
        first, second = subscriber(broker), subscriber(broker)
        for number in range(60):
            first.send(b"st/%d" % number)
            first.send(b"st/%d" % number)
        for number in range(40):
            second.send(b"st/%d" % number)
        broker.err.wait("Current Subscribers: 100/100")
        second.send(b"sone/more")
        second.send(b"st/0")
        second.send(b"pone/more;m")
        assert second.ask(b"pt/0;m") == b"t/0;m"
        broker.err.wait("warning: semicolon {}:{}: there are 100 subscribers already".format(*second.address))
        assert second.ask(b"Sother/dialect") == b"Aother/dialect", "the limit is semicolon's own"
        first.send(b"u")
        second.send(b"sone/more")
        assert second.ask(b"pone/more;m") == b"one/more;m"
        broker.err.wait("Current Subscribers: 40/100")
        broker.err.wait("Current Subscribers: 41/100")
        assert not broker.err.has("101/100")
        assert counts(broker) == {"too_many_subscribers": 1}


# --- the console ---


def test_every_semicolon_datagram_is_printed_and_no_other() -> None:
    with relay() as broker:
        client = broker.udp()
        shown = {
            b"stopic": "stopic",
            b"ptopic;21.5 \xc2\xb0C; dry": "ptopic;21.5 °C; dry",
            b"p\x1b[31m;\r\n\t\0": r"p\x1b[31m;\r\n\t\x00",
            b"pno separator": "pno separator",
            b"p\xff;\xc3": r"p\xff;\xc3",
            "p\u2028;\u202e\x85".encode(): r"p\u2028;\u202e\x85",
            b"uanything": "uanything",
            b"p": "p",
        }
        for datagram in shown:
            client.send(datagram)
        for datagram in (b"Sa/b", b"S|a", b"P|a|m", b"\x01c/d\x02m", b"?"):
            client.send(datagram)
        settled(broker)
        broker.stop()
        prefix = "{}:{}:".format(*client.address)
        lines = [line for line in broker.err.all if line.startswith(prefix)]
        assert lines == [prefix + text for text in shown.values()]
        assert [line.split()[0] for line in broker.out.all] == ["listening", "ready"], "standard output is for results"
        assert not any("\x1b" in line for line in broker.err.all)


def test_the_whole_of_the_longest_datagram_is_printed() -> None:
    with relay() as broker:
        client = broker.udp()
        client.send(b"px;" + b"m" * 505)
        broker.err.wait("{}:{}:px;".format(*client.address) + "m" * 505)


def test_the_number_of_subscribers_is_told_after_each_change() -> None:
    with relay("-s", "3") as broker:
        first, second = broker.udp(), broker.udp()
        for client, datagram in (
            (first, b"sa"),
            (first, b"sa"),  # no change
            (first, b"sb"),
            (second, b"sa"),
            (second, b"sb"),  # refused
            (second, b"pa;m"),
            (first, b"u"),
            (first, b"u"),  # no change
            (second, b"u"),
        ):
            client.send(datagram)
        settled(broker)
        broker.stop()
        told = [line for line in broker.err.all if line.startswith("Current Subscribers: ")]
        assert told == [f"Current Subscribers: {count}/3" for count in (1, 2, 3, 1, 0)]
        after = broker.err.all[broker.err.all.index("Current Subscribers: 1/3") - 1]
        assert after == "{}:{}:sa".format(*first.address), "the datagram first, then what it changed"


def test_quiet_turns_that_off_but_not_the_warnings() -> None:
    with started("--quiet", "--listen", "udp://127.0.0.1:0") as broker:
        client = Udp(broker.udp_port())
        for datagram in (b"sa", b"pa;m", b"u", b"pbad"):
            client.send(datagram)
        assert client.receive() == b"a;m"
        broker.err.wait("warning: semicolon")
        client.sock.close()
        assert broker.stop() == 0
        assert not broker.err.has("Current Subscribers")
        assert not any(line.startswith("127.0.0.1:") for line in broker.err.all)
        assert broker.out.all == []


def test_warnings_are_yellow_on_a_terminal_and_datagrams_plain() -> None:
    with Terminal() as terminal, started("--listen", "udp://127.0.0.1:0", stderr=terminal.slave) as broker:
        client = Udp(broker.udp_port())
        client.send(b"pbad")
        client.send(b"p" + b"x" * 508)
        client.ask(b"P|settled|")
        client.sock.close()
        assert broker.stop(signal.SIGINT) == 0
        text = terminal.text()
    where = "127.0.0.1:[0-9]+"
    assert re.search(rf"^{where}:pbad$", text, re.MULTILINE)
    assert re.search(rf"^{re.escape(YELLOW)}warning: semicolon {where}: .*{re.escape(PLAIN)}$", text, re.MULTILINE)
    assert text.count(YELLOW) == text.count(PLAIN) == 2


# --- signals ---


def test_sigusr1_makes_the_next_subscribe_drop_the_others_once() -> None:
    with relay() as broker:
        old, soh, new, third = broker.udp(), broker.udp(), broker.udp(), broker.udp()
        for topic in (b"a/b", b"a/#", b"x/y"):
            old.send(b"s" + topic)
        assert soh.ask(b"Sa/b") == b"Aa/b"
        assert soh.ask(b"S|a/b") == b"Hello Subscriber!"
        signalled(broker, signal.SIGUSR1)
        assert old.ask(b"pa/b;1") == b"a/b;1", "the signal alone drops nobody"
        assert {soh.receive(), soh.receive()} == {b"\x01a/b\x021", b"TOPIC: a/b - MESSAGE: 1"}
        assert soh.ask(b"Sa/c") == b"Aa/c"
        assert soh.ask(b"S|a/c") == b"Hello Subscriber!"
        new.send(b"s")
        assert old.ask(b"pa/b;2") == b"a/b;2", "nor does a subscribe of another dialect, or a bad one"
        assert {soh.receive(), soh.receive()} == {b"\x01a/b\x022", b"TOPIC: a/b - MESSAGE: 2"}
        new.send(b"sa/b")
        assert new.ask(b"pa/b;3") == b"a/b;3"
        third.send(b"sa/b")
        assert third.ask(b"pa/b;4") == b"a/b;4"
        assert new.receive() == b"a/b;4", "the flag is clear again"
        assert {soh.receive() for _ in range(4)} == {
            b"\x01a/b\x023",
            b"TOPIC: a/b - MESSAGE: 3",
            b"\x01a/b\x024",
            b"TOPIC: a/b - MESSAGE: 4",
        }
        old.send(b"sold/again")
        assert old.ask(b"pold/again;m") == b"old/again;m", "it got neither 3 nor 4"
        broker.stop()
        told = [line for line in broker.err.all if line.startswith("Current Subscribers: ")]
        assert told[3] == "Current Subscribers: 1/100"


def test_one_that_is_dropped_by_its_own_subscribe_keeps_just_that_one() -> None:
    with relay() as broker:
        client = subscriber(broker, b"a", b"b")
        settled(broker)
        signalled(broker, signal.SIGUSR1)
        client.send(b"sb")
        client.send(b"pa;m")
        assert client.ask(b"pb;m") == b"b;m"


def test_sigusr1_makes_room_when_there_is_none() -> None:
    with relay("-s", "1") as broker:
        subscriber(broker, b"a")
        settled(broker)
        signalled(broker, signal.SIGUSR1)
        client = subscriber(broker, b"b")
        assert client.ask(b"pb;m") == b"b;m"
        assert counts(broker) == {}


def test_a_listener_of_semicolon_alone_takes_every_datagram_as_semicolon() -> None:
    with relay(kinds=("semicolon",)) as broker:
        client = broker.udp("semicolon")
        client.send(b"s|a")
        for other in (b"S|a", b"Sa/b", b"P|a|m", b"\x01a/b\x02m", b""):
            client.send(other)
        assert client.ask(b"p|a;m") == b"|a;m"
        broker.stop()
        prefix = "{}:{}:".format(*client.address)
        expected = ["s|a", "S|a", "Sa/b", "P|a|m", r"\x01a/b\x02m", "", "p|a;m"]
        assert [line for line in broker.err.all if line.startswith(prefix)] == [prefix + text for text in expected]
        assert broker.err.has("malformed 5")


def test_two_peers_get_the_same_and_each_one_copy(broker: Broker) -> None:
    peers = [Peer(broker, f"127.0.0.{number}") for number in (2, 3)]
    for peer in peers:
        for topic in (b"both/x", b"both/#", b"#/x", b"both/x"):
            peer.subscribe("semicolon", topic)
    for number in (b"1", b"2"):
        broker.udp().send(b"pboth/x;" + number)
        assert [peer.receive() for peer in peers] == [b"both/x;" + number] * 2
