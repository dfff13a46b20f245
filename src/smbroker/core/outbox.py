"""An outbox: the frames that wait for one client until the turn's flush.

Core fills it, the server empties it: `flush` is the server's.
"""


class Outbox:
    __slots__ = ("frames",)

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def flush(self) -> None:
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """At once, while no turn is under way and so nothing waits."""
        self.frames.append(frame)
        self.flush()
