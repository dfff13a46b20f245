"""soh on the console: `[topic/subtopic] message`.

Acknowledgements and troubles go to standard error. The wire knows no good-bye.
"""

from collections.abc import Sequence
from contextlib import closing

from smbroker.cli import terminal
from smbroker.client.address import Address
from smbroker.client.soh import Ack, Message, Note, Subscriber, encode_subscribe

__all__ = ["encode_subscribe", "run"]


def run(address: Address, topics: Sequence[bytes]) -> int:
    with closing(Subscriber(address, topics)) as subscriber:
        for events in subscriber.events():
            for event in events:
                if isinstance(event, Ack):
                    terminal.say(f"subscribed to {terminal.text_of(event.topic)}")
                elif isinstance(event, Note):
                    terminal.warn(event.text)
            messages = (event for event in events if isinstance(event, Message))
            terminal.write(b"".join(b"[%b] %b\n" % (message.topic, message.message) for message in messages))
    return 0
