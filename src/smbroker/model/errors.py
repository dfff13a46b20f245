"""Errors, sorted by who must act.

    SmbError
    ├── ProtocolError   the peer is wrong: drop the datagram, or close that one connection
    ├── Refused         a fair request that we decline; the connection lives
    ├── Unfit           a message cannot be said in a subscriber's dialect: that subscriber goes without
    ├── LogError        we cannot keep our promise: stop acknowledging
    └── UsageError      the person at the keyboard is wrong: say which word, exit 2

Each carries a stable `code` for counters and a `text` for people. Anything else that is
raised is a bug of ours.
"""


class SmbError(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class ProtocolError(SmbError):
    pass


class Refused(SmbError):
    pass


class Unfit(SmbError):
    pass


class LogError(SmbError):
    pass


class UsageError(SmbError):
    pass


class Stopped(BaseException):
    """Somebody asked this program to end; not an Exception, because it is not an error."""
