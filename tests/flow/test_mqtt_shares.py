"""Shared subscriptions on the log: members that are away, come and go, leave while it is read; kills of the broker."""

from pathlib import Path

from flow.ends import ENDS, KINDS, end, kill, lasting, numbers, publish_all
from flow.house import Broker
from flow.mqtt import Mqtt
from smbroker.dialects.mqtt import fields as f
from smbroker.dialects.mqtt.packets import Publish


@ENDS
def test_a_shared_subscription_whose_members_are_all_away(tmp_path: Path, how: str) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        members = [lasting(broker, f"member{number}") for number in range(2)]
        for member in members:
            assert member.subscribe("$share/group/s/#", qos=1) == [1]
        members[0].disconnect()
        members[1].drop()
        publish_all(broker, b"s/x", range(500))
        publish_all(broker, b"other", range(10))
        Mqtt(broker).publish("s/x", b"not kept", 0)
        assert Mqtt(broker).quiet()
        end(broker, how)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        publish_all(broker, b"s/x", range(500, 600))
        member = lasting(broker, "member1")
        assert numbers(member, 600) == list(range(600))
        assert member.quiet()
        publish_all(broker, b"s/x", range(600, 610))
        assert numbers(member, 10) == list(range(600, 610))
        other = lasting(broker, "member0")
        publish_all(broker, b"s/x", range(20))
        assert sorted(numbers(member, 10) + numbers(other, 10)) == list(range(20))


def test_what_members_had_not_acknowledged_comes_again_after_a_kill(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        member = lasting(broker, "member")
        member.subscribe("$share/group/s", qos=1)
        publish_all(broker, b"s", range(20))
        for _ in range(20):
            member.expect(Publish)
        kill(broker)
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        member = lasting(broker, "member")
        assert numbers(member, 20) == list(range(20))
        assert member.quiet()


def test_members_that_come_and_go(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        what_a_member_does_not_acknowledge_goes_to_another(broker)
        a_share_is_forgotten_with_its_last_member(broker)


def what_a_member_does_not_acknowledge_goes_to_another(broker: Broker) -> None:
    mortal, other = Mqtt(broker, version=5), Mqtt(broker, version=5)
    for member in (mortal, other):
        member.subscribe("$share/group/s", qos=1)
    publish_all(broker, b"s", range(10))
    first = numbers(other, 5)
    for _ in range(5):
        mortal.expect(Publish)
    mortal.drop()
    assert sorted(first + numbers(other, 5)) == list(range(10))
    assert other.quiet()


def test_what_a_member_leaves_that_had_unsubscribed_goes_to_another(tmp_path: Path) -> None:
    """What it has not acknowledged, and what waits because of that."""
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        mortal, other = Mqtt(broker, version=5, properties={f.RECEIVE_MAXIMUM: 3}), Mqtt(broker, version=5)
        for member in (mortal, other):
            member.subscribe("$share/group/s", qos=1)
        publish_all(broker, b"s", range(10))
        first = numbers(other, 5)
        for _ in range(3):
            mortal.expect(Publish)
        assert mortal.unsubscribe("$share/group/s") == [0]
        mortal.drop()
        assert sorted(first + numbers(other, 5)) == list(range(10))
        assert other.quiet()


def test_a_share_far_behind_reads_from_the_log(tmp_path: Path) -> None:
    """More than is in memory after a restart, and more than fits a member's window."""
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        member = lasting(broker, "member", 4)
        member.subscribe("$share/group/#", qos=1)
        member.disconnect()
        for start in range(0, 5_000, 1_000):
            publish_all(broker, b"s/x", range(start, start + 1_000))
        end(broker, "stop")
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        member = lasting(broker, "member", 4)
        assert numbers(member, 5_000) == list(range(5_000))
        assert member.quiet()


def a_share_is_forgotten_with_its_last_member(broker: Broker) -> None:
    member = lasting(broker, "member")
    member.subscribe("$share/last/l", qos=1)
    publish_all(broker, b"l", range(5))
    assert numbers(member, 5) == list(range(5))
    assert member.unsubscribe("$share/last/l") == [0]
    publish_all(broker, b"l", range(5))
    member.subscribe("$share/last/l", qos=1)
    assert member.quiet()
    publish_all(broker, b"l", range(5, 10))
    assert numbers(member, 5) == list(range(5, 10))


def test_members_that_leave_at_once_cost_no_message(tmp_path: Path) -> None:
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        lasting(broker, "member").subscribe("$share/group/s", qos=1)
        lasting(broker, "member").disconnect()
        for start in range(0, 6_000, 1_000):
            publish_all(broker, b"s", range(start, start + 1_000))
        end(broker, "stop")
    with Broker(kinds=KINDS, data=tmp_path) as broker:
        for _ in range(20):
            lasting(broker, "member").drop()
        for _ in range(5):
            mortal = Mqtt(broker, version=5)
            mortal.subscribe("$share/group/s", qos=1)
            mortal.expect(Publish)
            mortal.drop()
        member = lasting(broker, "member")
        seen: set[int] = set()
        while len(seen) < 6_000:
            seen.add(int(member.get().payload))
        assert seen == set(range(6_000))
