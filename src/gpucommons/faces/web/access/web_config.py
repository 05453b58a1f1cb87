"""The web configuration file, in the format of Prometheus's exporters, as frozen values.

Its rate limit is a token bucket, which is here too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

# A token bucket: one request per `interval_s`, and up to `burst` at once. Pure: the caller passes the time.


@dataclass(frozen=True, slots=True)
class RateLimit:
    interval_s: float
    burst: int


class TokenBucket:
    def __init__(self, limit: RateLimit, now_s: float) -> None:
        self._limit = limit
        self._tokens = float(limit.burst)
        self._filled_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether one more request may pass now."""
        elapsed_s = max(0.0, now_s - self._filled_s)
        self._tokens = min(float(self._limit.burst), self._tokens + elapsed_s / self._limit.interval_s)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


# The web configuration file, in the format of Prometheus's exporters, as frozen values.
#
# Reads and checks that file only; opens no certificate and no socket. Every error is one line with the file and the
# key.

T = TypeVar("T")

CLIENT_AUTH_TYPES = (
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)
TLS_VERSIONS = ("TLS10", "TLS11", "TLS12", "TLS13")
CURVES = ("CurveP256", "CurveP384", "CurveP521", "X25519")
_HEADER_CHOICES: Mapping[str, tuple[str, ...] | None] = {
    "Content-Security-Policy": None,
    "Strict-Transport-Security": None,
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": None,
}
_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class WebConfigError(ValueError):
    """One line with the file, the key and the problem."""

    def __init__(self, line: str) -> None:
        super().__init__(" ".join(line.split()))


@dataclass(frozen=True, slots=True)
class TlsConfig:
    cert_file: Path
    key_file: Path
    client_auth_type: str = "NoClientCert"
    client_ca_file: Path | None = None
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path is not None)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """`users` are bcrypt hashes by name. Without users, no password is required."""

    tls: TlsConfig | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    rate_limit: RateLimit | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def read_web_config(file: Path, *, may_be_empty: bool = True) -> WebConfig:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise WebConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise WebConfigError(f"{file}: is not UTF-8 text") from error
    return parse_web_config(text, file, may_be_empty=may_be_empty)


def parse_web_config(text: str, file: Path, *, may_be_empty: bool = True) -> WebConfig:
    """`file` is for messages, and relative paths are relative to it. A file of comments only is empty."""
    # Imported here: most agents have no such file and need no YAML.
    from gpucommons.faces.web.access.strict_yaml import YamlError, load_strictly

    try:
        loaded = load_strictly(text)
    except YamlError as mistake:
        raise WebConfigError(f"{file}: {mistake}") from mistake
    if loaded is None and not may_be_empty:
        raise WebConfigError(f"{file}: is empty; write {{}} for a configuration without TLS and passwords")
    root = _Section(file, "", loaded)
    tls = root.section("tls_server_config")
    http = root.section("http_server_config")
    users = root.section("basic_auth_users")
    rate = root.section("rate_limit")
    root.check_unknown_keys()
    return WebConfig(_tls(tls), _users(users), _rate_limit(rate), _headers(http))


class _Section:
    """One mapping of the file. Known keys are taken out; a key that is left at the end is unknown."""

    def __init__(self, file: Path, name: str, value: object) -> None:
        self._file = file
        self._name = name
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.mistake("", "expected keys and values")
        for key in value:
            if not isinstance(key, str):
                raise self.mistake(str(key), "expected a string as the key: put it in quotes")
        self._values: dict[str, object] = dict(value)
        self._known: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._values)

    def mistake(self, key: str, what: str) -> WebConfigError:
        where = ".".join(part for part in (self._name, key) if part)
        return WebConfigError(f"{self._file}: {where}: {what}" if where else f"{self._file}: {what}")

    def section(self, key: str) -> "_Section":
        self._known.append(key)
        return _Section(self._file, f"{self._name}.{key}" if self._name else key, self._values.pop(key, None))

    def take(self, key: str, kind: type[T], default: T) -> T:
        self._known.append(key)
        value = self._values.pop(key, None)
        if value is None:
            return default
        # bool is a subclass of int in Python, but true is not a number in the file.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.mistake(key, f"expected {_KIND_NAMES[kind]}, got {value!r:.60}")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.take(key, str, default)
        if value not in choices:
            raise self.mistake(key, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.take(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise self.mistake(key, "expected a list of strings")
        return tuple(values)

    def path(self, key: str) -> Path | None:
        value = self.take(key, str, "")
        if not value.isprintable():
            raise self.mistake(key, "the path has a control character")
        return self._file.parent / value if value else None

    def rest(self) -> dict[str, object]:
        rest, self._values = self._values, {}
        return rest

    def check_unknown_keys(self) -> None:
        for key in self._values:
            raise self.mistake(key, f"unknown key; use one of {', '.join(self._known)}")


_KIND_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    str: "a string",
}


def _tls(section: _Section) -> TlsConfig | None:
    if not section:
        return None
    cert_file, key_file = section.path("cert_file"), section.path("key_file")
    config = TlsConfig(
        cert_file=cert_file or Path(),
        key_file=key_file or Path(),
        client_auth_type=section.choice("client_auth_type", CLIENT_AUTH_TYPES, "NoClientCert"),
        client_ca_file=section.path("client_ca_file"),
        client_allowed_sans=section.texts("client_allowed_sans"),
        min_version=section.choice("min_version", TLS_VERSIONS, "TLS12"),
        max_version=section.choice("max_version", TLS_VERSIONS, "TLS13"),
        cipher_suites=section.texts("cipher_suites"),
        prefer_server_cipher_suites=section.take("prefer_server_cipher_suites", bool, True),
        curve_preferences=section.texts("curve_preferences"),
    )
    section.check_unknown_keys()
    for key, path in (("cert_file", cert_file), ("key_file", key_file)):
        if path is None:
            raise section.mistake(key, "missing; TLS needs a certificate and its key")
    verifies = config.client_auth_type in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
    if verifies and config.client_ca_file is None:
        raise section.mistake("client_ca_file", f"missing; {config.client_auth_type} needs a CA")
    if config.client_auth_type == "NoClientCert" and (config.client_ca_file or config.client_allowed_sans):
        raise section.mistake(
            "client_auth_type",
            "expected RequireAndVerifyClientCert, since client_ca_file or client_allowed_sans is set",
        )
    if TLS_VERSIONS.index(config.min_version) > TLS_VERSIONS.index(config.max_version):
        raise section.mistake("min_version", f"{config.min_version} is above max_version {config.max_version}")
    for curve in config.curve_preferences:
        if curve not in CURVES:
            raise section.mistake("curve_preferences", f"{curve!r} is not one of {', '.join(CURVES)}")
    return config


def _users(section: _Section) -> Mapping[str, bytes]:
    users = {}
    for name, password_hash in section.rest().items():
        if not isinstance(password_hash, str) or not _BCRYPT.fullmatch(password_hash):
            raise section.mistake(name, "expected a bcrypt hash, such as 'htpasswd -nBC 10 NAME' prints")
        if ":" in name:
            raise section.mistake(name, "a user name cannot contain a colon")
        users[name] = password_hash.encode()
    return MappingProxyType(users)


def _rate_limit(section: _Section) -> RateLimit | None:
    interval = str(section.take("interval", object, "0"))
    burst = section.take("burst", int, 1)
    section.check_unknown_keys()
    interval_s = _duration_s(interval)
    if interval_s is None:
        raise section.mistake("interval", f"invalid duration {interval!r}; use a value such as 1s or 250ms")
    if burst < 1:
        raise section.mistake("burst", f"expected at least 1, got {burst}")
    return RateLimit(interval_s, burst) if interval_s > 0 else None


def _duration_s(text: str) -> float | None:
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def _headers(section: _Section) -> Mapping[str, str]:
    # HTTP/2 is offered and never required, so a server with HTTP/1.1 only is correct for both values.
    section.take("http2", bool, True)
    headers = section.section("headers")
    section.check_unknown_keys()
    values = {name: headers.take(name, str, "").strip() for name in _HEADER_CHOICES}
    headers.check_unknown_keys()
    for name, value in values.items():
        choices = _HEADER_CHOICES[name]
        if value and choices is not None and value.lower() not in choices:
            raise headers.mistake(name, f"{value!r} is not one of {', '.join(choices)}")
        if not value.isprintable() or not value.isascii():
            raise headers.mistake(name, "the value has a character that is not allowed in a header")
    return MappingProxyType({name: value for name, value in values.items() if value})
