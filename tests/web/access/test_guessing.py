"""Peers that guess passwords over real sockets keep out no peer with the right one."""

import asyncio
import base64
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest

from peers import Peer, fetch, port_of, run, serving, until

GUESSERS = 64


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"prometheus:{password}".encode()).decode()}


def web_config(tmp_path: Path, more: str = "") -> Path:
    path = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(rounds=4)).decode()
    path.write_text(f"basic_auth_users: {{prometheus: {hashed}}}\n{more}")
    return path


async def guess_forever(port: int, source: str, name: str) -> None:
    number = 0
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            async with await Peer.connect(port, source=source) as peer:
                while True:
                    number += 1
                    await peer.ask("/metrics", headers=basic(f"{name} {number}"))


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"], ids=["origin of the guesses", "another origin"])
def test_64_guessers_keep_out_no_right_password(tmp_path: Path, source: str) -> None:
    async def check() -> None:
        async with serving(web_config=web_config(tmp_path)) as server:
            port = port_of(server)
            guessers = [asyncio.create_task(guess_forever(port, "127.0.0.1", str(n))) for n in range(GUESSERS)]
            try:
                await until(lambda: server.stats().requests.get(("metrics", 401), 0) >= GUESSERS)
                answers = [await fetch(port, headers=basic("secret"), source=source) for _ in range(5)]
                assert [answer.status for answer in answers] == [200] * 5
            finally:
                for guesser in guessers:
                    guesser.cancel()
                await asyncio.gather(*guessers, return_exceptions=True)

    run(check())


def test_guesses_do_not_use_up_the_rate_of_peers_with_a_password(tmp_path: Path) -> None:
    async def check() -> None:
        config = web_config(tmp_path, "rate_limit: {interval: 1h, burst: 4}\n")
        async with serving(web_config=config) as server:
            port = port_of(server)
            wrong = [(await fetch(port, headers=basic(f"wrong {n}"), source="127.0.0.2")).status for n in range(6)]
            assert wrong == [401] * 4 + [429] * 2
            assert [(await fetch(port, source="127.0.0.2")).status for _ in range(2)] == [429] * 2
            # The first request of the right password is also a guess of its origin, until it is verified.
            right = [(await fetch(port, headers=basic("secret"), source="127.0.0.9")).status for _ in range(6)]
            assert right == [200] * 4 + [429] * 2

    run(check())


def test_a_remembered_password_passes_while_its_origin_is_over_the_rate(tmp_path: Path) -> None:
    async def check() -> None:
        config = web_config(tmp_path, "rate_limit: {interval: 1h, burst: 4}\n")
        async with serving(web_config=config) as server:
            port = port_of(server)
            assert (await fetch(port, headers=basic("secret"))).status == 200
            while (await fetch(port)).status != 429:
                pass
            assert (await fetch(port, headers=basic("secret"))).status == 200

    run(check())
