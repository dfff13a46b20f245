"""What the turn does with a command that is no publish: the table HANDLERS, for all dialects but MQTT.

One that changes who is subscribed first settles the turn, so that order holds across clients.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from smbroker.model.commands import Alive, Answer, Identify, Leave, Reject, Subscribe, Unsubscribe
from smbroker.model.errors import ProtocolError, Refused
from smbroker.model.message import Dialect
from smbroker.server.client import Client
from smbroker.server.console import printable

if TYPE_CHECKING:
    from smbroker.server.turn import Turn

EXPECTED = {  # of a log, by those who subscribe; without one they cannot have it
    Dialect.PADDED: "subscribers get no history",
    Dialect.TYPED: "sf 1 keeps nothing while a client is away",
}


def _subscribe(turn: "Turn", client: Client, command: Subscribe) -> None:
    client.grant.check_subscribe(command.filter)
    turn.settle()
    is_semicolon = client.origin.dialect is Dialect.SEMICOLON
    if is_semicolon and turn.drop_semicolon:
        turn.drop_semicolon = False
        turn.sessions.forget_semicolon()
    session = client.session
    if session is None:
        session = client.new_session()
        session.outbox = client
    session.grant = client.grant
    new = turn.sessions.subscribe(session, command.filter, command.keep)
    client.session = session
    if turn.commits is None and (command.keep or session.dialect is Dialect.PADDED):
        _tell_no_log(turn, session.dialect)
    if command.reply:
        turn.delivery.put(client, command.reply)
    if new and is_semicolon:
        tell_semicolon(turn)


def _tell_no_log(turn: "Turn", dialect: Dialect) -> None:
    """Once for each dialect."""
    if dialect not in turn.told_no_log:
        turn.told_no_log.add(dialect)
        turn.console.warn("no_log", f"{dialect}: without the log (--no-log) {EXPECTED[dialect]}")


def tell_semicolon(turn: "Turn") -> None:
    if not turn.config.quiet:
        count = turn.sessions.by_dialect[Dialect.SEMICOLON]
        turn.console.note(f"Current Subscribers: {count}/{turn.config.semicolon.max_subscribers}")


def _unsubscribe(turn: "Turn", client: Client, command: Unsubscribe) -> None:
    if client.session is None:
        return
    turn.settle()
    if command.filter is None:
        gone = turn.sessions.forget(client.session) > 0
    else:
        gone = turn.sessions.unsubscribe(client.session, command.filter)
    if gone and client.origin.dialect is Dialect.SEMICOLON:
        tell_semicolon(turn)


def _identify(turn: "Turn", client: Client, command: Identify) -> None:
    name = printable(command.client.encode())
    origin, who = client.origin, client.grant.user
    client.grant = turn.access.grant(origin.dialect, origin.host, command.client, who)
    if client.grant.nothing:
        raise ProtocolError("not_allowed", f"the client {name} may do nothing here")
    try:
        session = turn.sessions.typed(command.client)
    except Refused as error:  # nothing can follow on a connection without an id
        raise ProtocolError(error.code, error.text) from error
    if session.outbox is not None:
        turn.console.say(f"Client {name} already connected.")
        client.close()
        return
    if session.grant.user not in (None, who) and not session.grant.nothing:
        raise ProtocolError("other_user", f"the client {name} is another user's")
    turn.settle()
    client.session = session
    session.grant = client.grant
    turn.sessions.attach(session, client)
    turn.console.say(f"New client {name} connected from {client.origin.source}.")


def _answer(turn: "Turn", client: Client, command: Answer) -> None:
    if command.reply:
        turn.delivery.put(client, command.reply)


def _leave(turn: "Turn", client: Client, _command: Leave) -> None:
    turn.settle()
    if client.session is not None:
        turn.sessions.forget(client.session)
    client.close()


def _reject(_turn: "Turn", _client: Client, command: Reject) -> None:
    raise Refused(command.code, command.text)


def _alive(_turn: "Turn", _client: Client, _command: Alive) -> None:
    """The connection itself keeps the time."""


HANDLERS: dict[type, Callable[..., None]] = {
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Identify: _identify,
    Answer: _answer,
    Alive: _alive,
    Leave: _leave,
    Reject: _reject,
}
