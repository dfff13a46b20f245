"""A way to the broker that can be cut: what comes in by it is passed on until `cut`, and again afterwards."""

import socket
import threading
from contextlib import suppress


class Way:
    def __init__(self, port: int) -> None:
        self._to = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._through = True
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Way":
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._door)
        self.cut()

    def cut(self) -> None:
        """Ends all that is open, and refuses what comes until `mend`."""
        with self._lock:
            self._through = False
            ended, self._open = self._open, set()
        for sock in ended:
            self._end(sock)

    def mend(self) -> None:
        with self._lock:
            self._through = True

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._join(self._door.accept()[0])

    def _join(self, here: socket.socket) -> None:
        there = socket.create_connection(("127.0.0.1", self._to))
        with self._lock:
            through = self._through
            if through:
                self._open |= {here, there}
        if not through:
            self._end(here)
            self._end(there)
            return
        for one, other in ((here, there), (there, here)):
            threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        self._end(one)
        self._end(other)
        with self._lock:
            self._open -= {one, other}

    @staticmethod
    def _end(sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
