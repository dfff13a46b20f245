"""The page: the files under `static/`, read once. Nothing else can be asked for, so no path can lead elsewhere."""

from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
START = "index.html"


class Page:
    def __init__(self) -> None:
        self._files = {str(file.relative_to(STATIC)): _answer(file) for file in STATIC.rglob("*.*") if file.is_file()}

    async def file(self, request: Request) -> Response:
        found = self._files.get(request.path_params.get("name", START))
        if found is None:
            raise HTTPException(404)
        body, headers = found
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)


def _answer(file: Path) -> tuple[bytes, dict[str, str]]:
    body = file.read_bytes()
    tag = f'"{sha256(body).hexdigest()[:16]}"'
    return body, {"content-type": TYPES[file.suffix], "etag": tag, "cache-control": "no-cache"}
