"""The process that runs the devices: `python -m smbroker.cli.devices`, started by `smb demo`.

It takes its order from standard input, waits for the broker, says what to try and then plays until
it is told to stop or standard input ends: that happens whatever way its parent goes, also `kill -9`.
"""

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from threading import Thread
from time import monotonic, sleep

from smbroker.cli import terminal
from smbroker.cli.devices.curves import Clock
from smbroker.cli.devices.guide import guide
from smbroker.cli.devices.news import News, Screen, columns_of_terminal
from smbroker.cli.devices.order import Order, order_of
from smbroker.cli.devices.sensors import Message
from smbroker.cli.devices.wires import Ears, Wires
from smbroker.cli.devices.world import World
from smbroker.cli.signals import SIGNALS, Stopped, raise_stopped_on_signals
from smbroker.client.address import Address
from smbroker.client.errors import ClientError
from smbroker.model.message import Dialect

TICK = 0.05  # seconds
RETRY = 0.05  # seconds, while the broker starts
SLOW_START = 10.0  # seconds after which one may want to know what it waits for
SILENCE = 5.0  # seconds without a word, though we speak: we are not subscribed any more
CLIENT = "thermostat"  # the id in typed: at most 10 characters


def main() -> None:
    raise_stopped_on_signals()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked by our parent until we are prepared
        lines = terminal.InputLines()
        while not lines.ended:
            for line in lines.read():
                Thread(target=_stop_at_the_end_of, args=(lines,), daemon=True).start()
                play(order_of(line))
    except Stopped:
        pass


def _stop_at_the_end_of(lines: terminal.InputLines) -> None:
    while not lines.ended:
        lines.read()
    os.kill(os.getpid(), signal.SIGTERM)


def play(order: Order) -> None:
    clock, addresses = Clock(order.speed), order.addresses
    world, wires = World(order.seed, clock), Wires(addresses)
    _wait_for_broker(wires, addresses)
    news = News(clock, world.topics)
    screen = Screen(news, columns_of_terminal())
    if not order.quiet:
        terminal.write(b"".join(b"listening %b %b %d\n" % (k.encode(), h.encode(), p) for k, h, p in order.listening))
        terminal.write(b"ready\n")
        devices = sum(dialect in addresses for _, dialect in world.devices)
        _talk(guide(addresses, devices, order.programs, order.speed))
    try:
        with closing(Ears(addresses, CLIENT, world.thermostat.hears)) as ears:
            _play(world, wires, ears, addresses, news, None if order.quiet else screen)
    finally:
        _talk("" if order.quiet else screen.end())


def _play(
    world: World, wires: Wires, ears: Ears, addresses: Mapping[Dialect, Address], news: News, screen: Screen | None
) -> None:
    started = monotonic()
    last_heard = 0.0
    while True:
        now = monotonic() - started
        for heard in ears.heard():
            world.hear(*heard)
            if heard.dialect is Dialect.SEMICOLON:
                last_heard = now
                news.take(heard.topic, heard.text)
        if now - last_heard > SILENCE:
            last_heard = now
            ears.subscribe_again()
        for message in world.values(now):
            if message.dialect in addresses:
                _publish(wires, message, news)
        if screen:
            _talk(screen.show(now))
        sleep(TICK)


def _publish(wires: Wires, message: Message, news: News) -> None:
    try:
        wires.publish(message)
    except ClientError as error:
        news.trouble(error.text)


def _wait_for_broker(wires: Wires, addresses: Mapping[Dialect, Address]) -> None:
    """Until it takes a message in every dialect that is served."""
    tell_at = monotonic() + SLOW_START
    for dialect in addresses:
        while True:
            try:
                wires.publish(Message("demo", dialect, "demo/hello", f"hello in {dialect}"))
                break
            except ClientError as error:
                if monotonic() > tell_at:
                    terminal.warn(f"still waiting for the broker: {error.text}")
                    tell_at = monotonic() + SLOW_START
                sleep(RETRY)


def _talk(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # nobody reads it any more; the devices go on
        pass


if __name__ == "__main__":
    main()
