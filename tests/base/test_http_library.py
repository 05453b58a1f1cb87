"""aiohttp without the certificates of the system, and requests that verify their server all the same."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.authority import Authority
from gpucommons.base.http_client import get_json
from gpucommons.base.http_library import verifying_context, web

SOURCE = Path(__file__).resolve().parents[2] / "src" / "gpucommons"


@pytest.mark.long
def test_an_agent_starts_without_reading_certificates_and_its_environment_stays() -> None:
    lines = (
        "import os",
        "before = dict(os.environ)",
        "import gpucommons.agent.agent, aiohttp.connector as connector",
        "assert dict(os.environ) == before",
        "print(*(connector._SSL_CONTEXT_VERIFIED.cert_store_stats().values()))",
    )
    for variables in ({}, {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}):
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.split() == ["0", "0", "0"], done.stderr


def test_no_other_module_imports_aiohttp() -> None:
    library = SOURCE / "base" / "http_library.py"
    imports = re.compile(r"^\s*(?:import aiohttp|from aiohttp)", re.MULTILINE)
    others = [path for path in SOURCE.rglob("*.py") if path != library and imports.search(path.read_text())]
    allowed = [SOURCE / "base" / "http_client.py"]
    assert others == allowed, "there it is for types"


def failure(reason: str, detail: str) -> Exception:
    return RuntimeError(f"{reason}: {detail}")


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_server_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool) -> None:
    ours, other = Authority(tmp_path), Authority(tmp_path, "another authority")
    monkeypatch.setenv("SSL_CERT_FILE", str((ours if is_trusted else other).path))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    verifying_context.cache_clear()

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({"answer": 42})

    async def scenario() -> object:
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ours.server_tls("127.0.0.1"))
        await site.start()
        try:
            port = runner.addresses[0][1]
            return await get_json(f"https://127.0.0.1:{port}/", "test", failure, timeout_s=10.0, max_bytes=1000)
        finally:
            await runner.cleanup()

    try:
        if is_trusted:
            assert asyncio.run(scenario()) == {"answer": 42}
        else:
            with pytest.raises(RuntimeError, match="tls: test cannot be trusted"):
                asyncio.run(scenario())
    finally:
        verifying_context.cache_clear()
