"""A UDP socket that is connected to one broker.

Connected, it hears the broker alone, and learns that nobody listens: the refusal of one datagram
surfaces at the next call, whatever that is.
"""

import os
import socket

from smbroker.client.address import SOON, Address

MAX_DATAGRAM = 65_535  # more than UDP carries, so that nothing is cut
RECEIVE_BUFFER = 4_194_304  # bytes, or what the system allows: a burst that does not fit is lost
BATCH = 128  # datagrams; what is handed on at once


class Datagrams:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket = address.connected(socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    def send(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError as error:
            raise self.address.trouble(error) from error

    def check_refused(self) -> None:
        """Raises if what was just sent has come back already, as it does at once on this machine."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            error = OSError(code, os.strerror(code))
            raise self.address.trouble(error) from error

    def receive(self, timeout: float | None = None) -> list[bytes]:
        """What is there, but at least one datagram; nothing after `timeout` seconds without one."""
        self._socket.settimeout(None if timeout is None else max(timeout, SOON))
        try:
            batch = [self._socket.recv(MAX_DATAGRAM)]
        except TimeoutError:
            return []
        except OSError as error:
            raise self.address.trouble(error) from error
        self._socket.setblocking(False)
        try:
            while len(batch) < BATCH:
                batch.append(self._socket.recv(MAX_DATAGRAM))
        except OSError:  # nothing left; a refusal surfaces here only if the broker went after it sent the batch
            pass
        return batch

    def close(self) -> None:
        self._socket.close()


def send_once(address: Address, datagram: bytes) -> None:
    """Sends what needs no answer."""
    datagrams = Datagrams(address)
    try:
        datagrams.send(datagram)
        datagrams.check_refused()
    finally:
        datagrams.close()
