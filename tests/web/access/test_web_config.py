"""The web configuration file: its values, and one line for every error in it."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpucommons.faces.web.access.web_config import (
    RateLimit,
    TlsConfig,
    WebConfig,
    WebConfigError,
    parse_web_config,
    read_web_config,
)

FILE = Path("/etc/gpucommons/web.yml")
HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"


def parse(text: str) -> WebConfig:
    return parse_web_config(text, FILE)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "tls_server_config:\n", "tls_server_config: {}\n"])
def test_an_empty_file_is_the_default(text: str) -> None:
    config = parse(text)
    assert (config.tls, dict(config.users), config.rate_limit, dict(config.headers)) == (None, {}, None, {})


def test_all_keys_together() -> None:
    config = parse(f"""
tls_server_config:
  cert_file: node.pem
  key_file: /keys/node.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca/clients.pem
  client_allowed_sans: [prometheus.example, 10.0.0.1]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519]
http_server_config:
  http2: false
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: SameOrigin
basic_auth_users:
  alice: {HASH}
rate_limit:
  interval: 1m30s
  burst: 5
""")
    assert config.tls == TlsConfig(
        cert_file=FILE.parent / "node.pem",
        key_file=Path("/keys/node.key"),
        client_auth_type="RequireAndVerifyClientCert",
        client_ca_file=FILE.parent / "ca/clients.pem",
        client_allowed_sans=("prometheus.example", "10.0.0.1"),
        cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
        prefer_server_cipher_suites=False,
        curve_preferences=("X25519",),
    )
    assert dict(config.users) == {"alice": HASH.encode()}
    assert config.rate_limit == RateLimit(90.0, 5)
    assert dict(config.headers) == {
        "Strict-Transport-Security": "max-age=31536000",
        "X-Frame-Options": "SameOrigin",
    }


@pytest.mark.parametrize(
    ("interval", "limit"),
    [("0", None), ("0s", None), ("250ms", RateLimit(0.25, 1)), ("1.5s", RateLimit(1.5, 1)), ("2h", RateLimit(7200, 1))],
)
def test_rate_limit_intervals(interval: str, limit: RateLimit | None) -> None:
    assert parse(f"rate_limit: {{interval: {interval}}}").rate_limit == limit


PAIR = "cert_file: c, key_file: k"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("- a list", "expected keys and values"),
        ("just text", "expected keys and values"),
        ("a: [", "line 1"),
        ("a: b: c", "line 1"),
        ("rate_limit: {}\nrate_limit: {}", "duplicate key 'rate_limit'"),
        ("tls_config: {}", "tls_config: unknown key"),
        ("tls_server_config: yes", "tls_server_config: expected keys"),
        ('tls_server_config: {cert_file: "a\\0b", key_file: k}', "tls_server_config.cert_file: the path has"),
        (f"tls_server_config: {{{PAIR}, certfile: x}}", "tls_server_config.certfile: unknown key"),
        ("tls_server_config: {key_file: k}", "tls_server_config.cert_file: missing"),
        ("tls_server_config: {cert_file: c}", "tls_server_config.key_file: missing"),
        (f"tls_server_config: {{{PAIR}, min_version: SSL3}}", "tls_server_config.min_version"),
        (f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}", "tls_server_config.min_version"),
        (f"tls_server_config: {{{PAIR}, client_auth_type: Maybe}}", "tls_server_config.client_auth_type"),
        (f"tls_server_config: {{{PAIR}, client_ca_file: x}}", "tls_server_config.client_auth_type"),
        (f"tls_server_config: {{{PAIR}, client_allowed_sans: [x]}}", "tls_server_config.client_auth_type"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
            "tls_server_config.client_ca_file: missing",
        ),
        (f"tls_server_config: {{{PAIR}, cipher_suites: x}}", "tls_server_config.cipher_suites: expected a list"),
        (f"tls_server_config: {{{PAIR}, cipher_suites: [1]}}", "tls_server_config.cipher_suites: expected a list"),
        (f"tls_server_config: {{{PAIR}, curve_preferences: [P1]}}", "tls_server_config.curve_preferences"),
        (f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: 1}}", "cipher_suites: expected true"),
        ("http_server_config: {http3: true}", "http_server_config.http3: unknown key"),
        ("http_server_config: {headers: {Set-Cookie: x}}", "http_server_config.headers.Set-Cookie: unknown key"),
        ("http_server_config: {headers: {X-Frame-Options: maybe}}", "headers.X-Frame-Options"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\nb"}}', "headers.X-XSS-Protection"),
        ("basic_auth_users: {alice: secret}", "basic_auth_users.alice: expected a bcrypt hash"),
        ("basic_auth_users: {alice: 1}", "basic_auth_users.alice: expected a bcrypt hash"),
        (f"basic_auth_users: {{alice: {HASH[:-1]}}}", "basic_auth_users.alice: expected a bcrypt hash"),
        (f"basic_auth_users: {{1: {HASH}}}", "basic_auth_users.1: expected a string as the key"),
        (f"basic_auth_users: {{'a:b': {HASH}}}", "basic_auth_users.a:b: a user name cannot contain a colon"),
        ("rate_limit: {interval: soon}", "rate_limit.interval"),
        ("rate_limit: {interval: 5}", "rate_limit.interval"),
        ("rate_limit: {interval: 1s, burst: 0}", "rate_limit.burst"),
        ("rate_limit: {interval: 1s, burst: true}", "rate_limit.burst: expected a whole number"),
    ],
)
def test_an_error_is_one_line_with_file_and_key(text: str, key: str) -> None:
    with pytest.raises(WebConfigError) as caught:
        parse(text)
    line = str(caught.value)
    assert line.startswith(f"{FILE}: ")
    assert key in line
    assert "\n" not in line


def test_an_error_never_contains_a_password_hash() -> None:
    with pytest.raises(WebConfigError) as caught:
        parse("basic_auth_users: {alice: my-plain-password}")
    assert "my-plain-password" not in str(caught.value)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WebConfigError, match="cannot be read"):
        read_web_config(tmp_path / "missing.yml")
    with pytest.raises(WebConfigError, match="cannot be read"):
        read_web_config(tmp_path)
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WebConfigError, match="UTF-8"):
        read_web_config(tmp_path / "binary.yml")


YAML_PIECES = (
    *("tls_server_config", "headers", "users", "1", "true", "~", "<<", "2020-13-45", '"a\\nb"'),
    *(":", ": ", "\n", "  ", "- ", "[", "]", "{", "}", "&a", "*a", "!!x", "'", "%", "@", "|", "\t", "\x00", "\x85"),
)


@given(st.text() | st.lists(st.sampled_from(YAML_PIECES)).map("".join))
@example('"a\\nb": 1')
def test_any_text_is_a_configuration_or_an_error_of_one_line(text: str) -> None:
    line = ""
    try:
        parse(text)
    except WebConfigError as error:
        line = str(error)
    assert len(line.splitlines()) <= 1
