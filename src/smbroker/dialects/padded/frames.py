"""What a padded subscriber gets.

Message 64 · title 64 · length 64, decimal, in bytes · message
"""

from smbroker.dialects.padded.fields import MESSAGE, title_field
from smbroker.model.errors import Unfit
from smbroker.model.framing import Framer
from smbroker.model.message import Columns
from smbroker.model.topic import Topic


def framer(topic: Topic) -> Framer:
    head = MESSAGE + title_field(topic, Unfit)

    def frames(columns: Columns, start: int, end: int, _unfit: list[str]) -> list[bytes]:
        return [b"%b%-64d%b" % (head, len(payload), payload) for payload in columns.payloads[start:end]]

    return frames
