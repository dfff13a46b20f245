"""MQTT 5's reason codes, and the error that carries one.

`Malformed` is a ProtocolError that also knows what to say to the client: an MQTT 5 connection is told
the reason before it is closed; older versions are just closed, or answered with a CONNACK return code.
"""

from typing import Any, Final

from smbroker.model.errors import ProtocolError

NO_SUBSCRIPTION_EXISTED: Final = 0x11
DISCONNECT_WITH_WILL: Final = 0x04
UNSPECIFIED: Final = 0x80
MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION: Final = 0x83
UNSUPPORTED_VERSION: Final = 0x84
CLIENT_ID_NOT_VALID: Final = 0x85
BAD_USER_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_ID_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
QUOTA_EXCEEDED: Final = 0x97
PAYLOAD_FORMAT_INVALID: Final = 0x99

# What CONNACK says in 3.1 and 3.1.1 instead.
RETURN_CODES: Final = {
    UNSUPPORTED_VERSION: 1,
    CLIENT_ID_NOT_VALID: 2,
    SERVER_UNAVAILABLE: 3,
    SERVER_BUSY: 3,
    QUOTA_EXCEEDED: 3,
    BAD_USER_OR_PASSWORD: 4,
    NOT_AUTHORIZED: 5,
}


class Malformed(ProtocolError):
    def __init__(self, code: str, text: str, reason: int = MALFORMED) -> None:
        super().__init__(code, text)
        self.reason = reason
        self.items: list[Any] = []  # what a stream brought before the fault
        self.version = 0  # of the CONNECT that has the fault, if it says one
