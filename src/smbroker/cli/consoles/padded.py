"""padded on the console: `title: message`; a connection and a thread per title; `exit` ends it.

thread per title ─┐
standard input ───┴─► queue ─► this thread, which alone prints
"""

from collections.abc import Sequence
from contextlib import ExitStack
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import TypeAlias

from smbroker.cli import terminal
from smbroker.client.address import Address
from smbroker.client.errors import ClientError
from smbroker.client.padded import ACK_TIMEOUT, Ended, Event, Message, Subscribed, Subscriber, encode_subscribe

__all__ = ["encode_subscribe", "run"]

WAITING = 1_000  # events; a thread that is further ahead of the printing waits, and so, in the end, does the broker


class Exit:
    """`exit` was typed."""


Events: TypeAlias = Queue[Event | Exit]


def run(address: Address, titles: Sequence[bytes]) -> int:
    events: Events = Queue(WAITING)
    with ExitStack() as open_subscribers:
        alive = _start(address, titles, events, open_subscribers)
        Thread(target=_watch_input, args=(terminal.InputLines(), events), daemon=True).start()
        while alive:
            batch = _batch(events)
            messages = [event for event in batch if isinstance(event, Message)]
            terminal.write(b"".join(b"%b: %b\n" % (message.title, message.message) for message in messages))
            for event in batch:
                if isinstance(event, Exit):
                    return 0
                if isinstance(event, Subscribed):
                    terminal.say(f"subscribed to {terminal.text_of(event.title)}")
                elif isinstance(event, Ended):
                    terminal.error(f"{terminal.text_of(event.title)}: {event.reason}")
                    alive -= 1
    return 1


def _start(address: Address, titles: Sequence[bytes], events: Events, open_subscribers: ExitStack) -> int:
    """How many titles have a connection; the others are named."""
    alive, deadline = 0, monotonic() + ACK_TIMEOUT
    for title in titles:
        try:
            subscriber = Subscriber(address, title, deadline - monotonic())
        except ClientError as error:
            terminal.error(f"{terminal.text_of(title)}: {error.text}")
            continue
        open_subscribers.callback(subscriber.close)
        Thread(target=subscriber.run, args=(events.put,), daemon=True).start()
        alive += 1
    return alive


def _batch(events: Events) -> list[Event | Exit]:
    batch = [events.get()]
    try:
        while len(batch) < WAITING:
            batch.append(events.get_nowait())
    except Empty:
        pass
    return batch


def _watch_input(lines: terminal.InputLines, events: Events) -> None:
    while not lines.ended:
        if any(line.strip() == b"exit" for line in lines.read()):
            events.put(Exit())
