"""HTTP for people without a browser: questions answered in JSON, and streams of events that survive a cut."""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from smbroker.client.errors import ClientError

URL = "http://127.0.0.1:8090"
TIMEOUT = 40.0  # seconds: a stream that is silent says so every 15
PATIENCE = 60.0  # seconds for a broker that was there to come back
PAUSE = 0.5  # seconds between tries


class Event(NamedTuple):
    kind: str
    data: dict[str, Any]


class WebClient:
    def __init__(self, url: str, shown: Mapping[str, str] | None = None) -> None:
        """`shown`: headers that say who we are. Raises ClientError if the address is not one."""
        self._url = url
        self._shown = dict(shown or {})
        address_of(url)

    def ask(self, path: str, parameters: Mapping[str, object] | None = None) -> Any:
        connection, answer = self._answer(path, parameters or {}, {})
        try:
            return json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._cut(error) from error
        finally:
            connection.close()

    def events(self, path: str, parameters: Mapping[str, object]) -> Iterator[Event]:
        """For ever. When the connection is cut it goes on after the last event; a broker that is down is waited for."""
        last: str | None = None
        lost = 0.0  # since when
        while True:
            try:
                headers = {} if last is None else {"Last-Event-ID": last}
                connection, answer = self._answer(path, parameters, headers)
            except ClientError as error:
                if not lost or error.code not in ("no_broker", "stopping") or time.monotonic() - lost > PATIENCE:
                    raise
                time.sleep(PAUSE)
                continue
            lost = 0.0
            try:
                for name, event in _events(answer):
                    last = name or last
                    yield event
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            lost = time.monotonic()
            time.sleep(PAUSE)

    def _answer(
        self, path: str, parameters: Mapping[str, object], headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = connection_to(self._url)
        try:
            connection.request(
                "GET", f"{path}?{urlencode(parameters)}" if parameters else path, headers=self._shown | dict(headers)
            )
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.OK:
                return connection, answer
            raise error_of(answer.status, answer.read(), self._url)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._cut(error) from error

    def _cut(self, error: Exception) -> ClientError:
        if why := getattr(error, "verify_message", ""):
            remedy = "name the file of the one who signed it in the variable SSL_CERT_FILE"
            return ClientError("tls", f"the certificate of {self._url} is not trusted: {why}; {remedy}")
        return ClientError("no_broker", f"{self._url} does not answer ({error}); is the broker running?")


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path.strip("/"):
        raise ClientError("bad_url", f"{url}: the broker's address is like {URL}")
    return parts.hostname, port


def connection_to(url: str, timeout: float = TIMEOUT) -> http.client.HTTPConnection:
    """Not open yet. Over TLS those are trusted whom the system trusts, or whom the file in SSL_CERT_FILE names."""
    secure = urlsplit(url).scheme == "https"
    made = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return made(*address_of(url), timeout=timeout)


def error_of(status: int, said: bytes, url: str) -> ClientError:
    try:
        error = json.loads(said)["error"]
        return ClientError(str(error["code"]), f"{url}: {error['text']}")
    except (ValueError, KeyError, TypeError):
        return ClientError("no_broker", f"{url} answers with status {status}: is that an SMB broker?")


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str | None, Event]]:
    """Each with its id, if it has one."""
    name, kind, data = None, "message", ""
    for line in iter(answer.readline, b""):
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "id":
            name = value
        elif key == "event":
            kind = value
        elif key == "data":
            data = value
        elif not key and data:
            yield name, Event(kind, json.loads(data))
            name, kind, data = None, "message", ""
