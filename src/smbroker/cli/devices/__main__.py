"""The process that runs the devices: `python -m smbroker.cli.devices`, started by `smb demo`.

It takes its order from standard input, waits for the broker, says what to try and then plays until
it is told to stop or standard input ends: that happens whatever way its parent goes, also `kill -9`.
"""

import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from time import monotonic, sleep
from typing import NoReturn

from smbroker.cli import terminal
from smbroker.cli.beside import stop_at_the_end_of
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
from smbroker.model.errors import SmbError
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
                stop_at_the_end_of(lines)
                _play(order_of(line))
    except SmbError as error:
        terminal.fail(error.text)
    except Stopped:
        pass


def _play(order: Order) -> NoReturn:
    clock, addresses = Clock(order.speed), order.addresses
    world = World(order.seed, clock)
    with closing(Wires(addresses)) as wires:
        _wait_for_broker(wires, addresses)
    if not order.quiet:
        _announce(order, sum(dialect in addresses for _, dialect in world.devices))
    screen = None if order.quiet else Screen(News(clock, world.topics), columns_of_terminal())
    try:
        with closing(Wires(addresses)) as wires, closing(Ears(addresses, CLIENT, world.thermostat.hears)) as ears:
            Player(world, wires, ears, addresses, screen).run()
    finally:
        if screen:
            _talk(screen.end())


class Player:
    def __init__(
        self, world: World, wires: Wires, ears: Ears, addresses: Mapping[Dialect, Address], screen: Screen | None
    ) -> None:
        self._world = world
        self._wires = wires
        self._ears = ears
        self._addresses = addresses
        self._screen = screen
        self._last_heard = 0.0

    def run(self) -> NoReturn:
        started = monotonic()
        while True:
            now = monotonic() - started
            try:
                self._hear(now)
                self._speak(now)
            except ClientError as error:  # the rest of this tick is lost; more comes soon
                if self._screen:
                    self._screen.news.trouble(now, error.text)
            if self._screen:
                _talk(self._screen.show(now))
            sleep(TICK)

    def _hear(self, now: float) -> None:
        for dialect, topic, text in self._ears.heard():
            self._world.hear(dialect, topic, text)
            if dialect is Dialect.SEMICOLON:  # has all there is
                self._last_heard = now
                self._tell(topic, text)
        if now - self._last_heard > SILENCE:
            self._last_heard = now
            self._ears.subscribe_again()

    def _speak(self, now: float) -> None:
        for message in self._world.values(now):
            if message.dialect in self._addresses:
                self._wires.publish(message)
                if Dialect.SEMICOLON not in self._addresses:  # we do not hear it, but know that we said it
                    self._tell(message.topic, message.text)

    def _tell(self, topic: str, text: str) -> None:
        if self._screen:
            self._screen.news.take(topic, text)


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


def _announce(order: Order, devices: int) -> None:
    """On standard output what `smbbroker` would say, and on standard error what to try."""
    lines = [f"listening {kind} {host} {port}\n" for kind, host, port in order.listening]
    try:
        terminal.write("".join([*lines, "ready\n"]).encode())
    except (BrokenPipeError, SmbError):  # nobody wants to know
        pass
    _talk(guide(order.addresses, devices, order.programs, order.speed, order.page))


def _talk(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # nobody reads it any more; the devices go on
        pass


if __name__ == "__main__":
    main()
