"""aiohttp, without the certificates of the system.

As it is imported, aiohttp reads them twice, for requests that name no TLS context: 2.5 MB, and a tenth of an agent's
start. Every module imports aiohttp from here, and a request to https:// names `verifying_context()`. A request that
names none fails: it trusts no server.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Where OpenSSL looks for certificates.
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def _no_certificates() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(dict.fromkeys(_VARIABLES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _no_certificates():
    import aiohttp as aiohttp
    from aiohttp import web as web
    from aiohttp.http_exceptions import HttpProcessingError as HttpProcessingError


@cache
def verifying_context() -> ssl.SSLContext:
    """Trusts the certificates of the system. Reads files: not for the loop."""
    return ssl.create_default_context()
