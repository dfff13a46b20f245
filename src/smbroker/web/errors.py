"""Errors as HTTP tells them: `{"error": {"code", "text"}}` with a status that follows from the error."""

from starlette.responses import JSONResponse

from smbroker.model.errors import LogError, SmbError

BY_CODE = {
    "bad_host": 400,
    "bad_origin": 403,
    "not_allowed": 403,
    "bad_password": 401,
    "too_many_logins": 429,
    "login_busy": 503,
    "not_found": 404,
    "gone": 404,
    "no_table": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "body_too_long": 413,
    "payload_too_long": 413,
    "batch_too_large": 413,
    "bad_token": 401,
    "stage_missing": 409,
    "bad_type": 415,
    "not_websocket": 426,
    "bad_table": 503,
    "no_reader": 503,
    "too_many_streams": 503,
    "too_many_replays": 503,
    "too_many_bodies": 503,
    "too_many_stages": 503,
}


def status_of(error: SmbError) -> int:
    return BY_CODE.get(error.code, 503 if isinstance(error, LogError) else 400)


def answer(error: SmbError) -> JSONResponse:
    return failure(status_of(error), error.code, error.text)


def failure(status: int, code: str, text: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "text": text}}, status)
