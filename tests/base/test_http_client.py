"""The HTTP client: every failure of a request is the caller's exception, with a reason and one line."""

import pytest
from aiohttp import web

from gpucommons.base.http_client import get_json
from peers import run


class Failed(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


async def get_from(response: web.Response, max_bytes: int = 1000) -> object:
    async def handler(request: web.BaseRequest) -> web.Response:
        return response

    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        return await get_json(url, "the server", Failed, timeout_s=10, max_bytes=max_bytes)
    finally:
        await runner.cleanup()


def test_a_good_answer_is_parsed() -> None:
    assert run(get_from(web.json_response({"a": [1]}))) == {"a": [1]}


@pytest.mark.parametrize(
    ("response", "reason", "says"),
    [
        (lambda: web.Response(text="<html>"), "garbage", "the server sent an answer that is not JSON"),
        (lambda: web.Response(text="x" * 1001), "oversize", "the server sent an answer of more than 1000 bytes"),
        (lambda: web.Response(status=500, text="<html>"), "status", "the server answered with status 500"),
        (
            lambda: web.json_response({"error": "parse\nerror"}, status=400),
            "status",
            "the server answered with status 400: parse error",
        ),
        (
            lambda: web.json_response("bad filter", status=400),
            "status",
            "the server answered with status 400: bad filter",
        ),
        (
            lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
            "status",
            "the server answered with status 302",
        ),
    ],
)
def test_a_bad_answer_is_a_failure_of_one_line(response: object, reason: str, says: str) -> None:
    assert callable(response)
    with pytest.raises(Failed) as caught:
        run(get_from(response()))
    assert (caught.value.reason, str(caught.value)) == (reason, says)


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:1/", "unreachable"), ("http://[/", "garbage")],
)
def test_a_server_that_cannot_be_reached_is_a_failure(url: str, reason: str) -> None:
    with pytest.raises(Failed) as caught:
        run(get_json(url, "the server", Failed, timeout_s=10, max_bytes=10))
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)
