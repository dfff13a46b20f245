"""Grants: rights that are remembered by topic, and change with the rules."""

import gc

import pytest

from smbroker.core.rights import Rights
from smbroker.model.errors import Refused
from smbroker.model.filter import parse
from smbroker.model.grant import EVERYTHING, LONGEST, MOST, NOTHING, TRUSTED
from smbroker.model.message import Dialect
from smbroker.model.rights import Identity
from smbroker.model.rules import rules

ANN = Identity(Dialect.MQTT, "10.0.0.1", "ann")


def rights(text: str) -> Rights:
    return Rights(rules(text, "r"))


def test_without_rules_this_machine_may_do_all_and_nobody_else_anything() -> None:
    without = Rights()
    assert without.grant(Identity(Dialect.SOH, "127.0.0.1")) is EVERYTHING
    assert without.grant(Identity(Dialect.SOH, "::1")) is EVERYTHING
    for host in ("10.0.0.1", "", "fe80::1%eth0", "0.0.0.0"):
        assert without.grant(Identity(Dialect.SOH, host)) is NOTHING
    assert EVERYTHING.subscribes[b"$SYS/x"]
    assert not NOTHING.subscribes[b"a"]
    assert NOTHING.nothing
    with pytest.raises(Refused):
        NOTHING.check_publish(b"a")
    with pytest.raises(Refused):
        NOTHING.check_subscribe(parse("#"))


def test_with_rules_loopback_is_nobody_special() -> None:
    grant = rights("[[allow]]\nuser = 'ann'\ntopics = '#'\n").grant(Identity(Dialect.SOH, "127.0.0.1"))
    assert grant.nothing
    assert not grant.subscribes[b"a"]


def test_a_change_of_the_rules_changes_grants_that_are_in_use() -> None:
    all_ = rights("[[allow]]\nuser = 'ann'\ntopics = '#'\n")
    told: list[bool] = []
    grant = all_.grant(ANN)
    assert grant is all_.grant(ANN)
    assert grant.subscribes[b"secret/x"]
    all_.changed.append(lambda: told.append(grant.subscribes[b"secret/x"]))
    all_.change(rules("[[allow]]\nuser = 'ann'\ntopics = '#'\n[[deny]]\nanyone = true\ntopics = 'secret/#'\n", "r"))
    assert told == [False]
    assert not grant.publishes[b"secret/x"]
    assert grant.publishes[b"open"]


def test_what_is_remembered_is_bounded_and_forgotten_with_its_client() -> None:
    all_ = rights("[[allow]]\nanyone = true\ntopics = 'a/#'\n")
    grant = all_.grant(ANN)
    for number in range(MOST + 10):
        assert grant.publishes[b"a/%d" % number]
    assert len(grant.publishes) <= MOST
    assert grant.replays[b"a/" + b"x" * LONGEST]
    assert not grant.replays
    del grant
    gc.collect()
    assert not all_._grants


def test_the_pipelines_may_do_everything() -> None:
    assert rights("[[allow]]\nuser = 'ann'\ntopics = 'a'\n").grant(Identity(Dialect.HTTP, trusted=True)) is TRUSTED
