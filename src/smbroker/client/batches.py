"""Batches over HTTP: rows are staged, then published by one commit, once. Spark's sink; see docs/reference/http.md.

A broker that is down, or whose log cannot take messages, is tried again for a while.
"""

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from smbroker.client.errors import ClientError
from smbroker.client.web import address_of, connection_to, error_of

ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT = 60.0  # seconds for an answer
PATIENCE = 60.0  # seconds for a broker that is down to come back
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between tries, then always the last
AGAIN = 503  # the status of what may work later


class BatchClient:
    def __init__(self, url: str, token: str | None = None, patience: float = PATIENCE) -> None:
        """Raises ClientError if the address is not one."""
        self._url = url
        address_of(url)
        self._token = token
        self._patience = patience

    def stage(self, body: bytes) -> str:
        """The name of these rows, an Arrow stream, for the commit."""
        name: str = self._call("POST", "/v1/stages", body, ARROW)["stage"]
        return name

    def commit(
        self, query: str, batch: int, stages: Sequence[str], client: str | None = None, skip_bad: bool = False
    ) -> dict[str, Any]:
        """Publishes the batch, or finds that it has been. ClientError `stage_missing`: stage it all again."""
        order = json.dumps({"stages": list(stages), "client": client, "skip_bad": skip_bad}).encode()
        return self._call("POST", f"/v1/batches/{quote(query, safe='')}/{batch}", order, "application/json")

    def last(self, query: str) -> int | None:
        """The last batch of the query that was published."""
        batch: int | None = self._call("GET", f"/v1/batches/{quote(query, safe='')}")["batch"]
        return batch

    def _call(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> dict[str, Any]:
        deadline = time.monotonic() + self._patience
        tries = 0
        while True:
            try:
                status, said = self._ask(method, path, body, kind)
                if status == 200:
                    found: dict[str, Any] = json.loads(said)
                    return found
                error = error_of(status, said, self._url)
            except (OSError, http.client.HTTPException) as trouble:
                status, error = AGAIN, ClientError("no_broker", f"{self._url} does not answer ({trouble})")
            pause = PAUSES[min(tries, len(PAUSES) - 1)]
            tries += 1
            if status != AGAIN or time.monotonic() + pause > deadline:
                raise error
            time.sleep(pause)

    def _ask(self, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, bytes]:
        headers = {"Content-Type": kind} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = connection_to(self._url, TIMEOUT)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
