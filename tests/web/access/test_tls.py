"""TLS settings become a context, or an error of one line."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from certificates import Authority
from gpucommons.faces.web.access.tls import Tls, build_tls, subject_names
from gpucommons.faces.web.access.web_config import TlsConfig, WebConfigError

FILE = Path("web.yml")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> TlsConfig:
    pair = authority.issue("server", "localhost")
    return TlsConfig(pair.cert_file, pair.key_file)


def mistake(config: TlsConfig) -> str:
    with pytest.raises(WebConfigError) as caught:
        build_tls(config, FILE)
    line = str(caught.value)
    assert line.startswith("web.yml: tls_server_config.")
    assert "\n" not in line
    return line


def test_the_defaults_are_tls_1_2_and_up_without_client_certificates(good: TlsConfig) -> None:
    context = build_tls(good, FILE).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.maximum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_NONE
    assert context.options & ssl.OP_CIPHER_SERVER_PREFERENCE


def test_versions_ciphers_and_preference_are_set(good: TlsConfig) -> None:
    suites = ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
    config = replace(good, max_version="TLS12", cipher_suites=suites, prefer_server_cipher_suites=False)
    context = build_tls(config, FILE).context
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    assert not context.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    older = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-ECDSA-CHACHA20-POLY1305"]


def test_only_suites_of_tls_1_3_disable_tls_1_2(good: TlsConfig) -> None:
    context = build_tls(replace(good, cipher_suites=("TLS_AES_256_GCM_SHA384",)), FILE).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("curve", ["CurveP256", "CurveP384", "CurveP521", "X25519"])
def test_every_curve_of_the_format_is_known(good: TlsConfig, curve: str) -> None:
    build_tls(replace(good, curve_preferences=(curve,)), FILE)


def test_values_that_ssl_does_not_support_are_errors(good: TlsConfig) -> None:
    for auth_type in ("RequestClientCert", "RequireAnyClientCert"):
        assert "client_auth_type" in mistake(replace(good, client_auth_type=auth_type))
    assert "min_version" in mistake(replace(good, min_version="TLS10"))
    assert "max_version" in mistake(replace(good, max_version="TLS11"))
    assert "curve_preferences" in mistake(replace(good, curve_preferences=("CurveP256", "X25519")))
    assert "cipher_suites" in mistake(replace(good, cipher_suites=("TLS_RSA_WITH_RC4_128_SHA",)))
    only_13 = replace(good, max_version="TLS12", cipher_suites=("TLS_AES_128_GCM_SHA256",))
    assert "cipher_suites" in mistake(only_13)


def test_files_that_are_missing_or_wrong(good: TlsConfig, authority: Authority, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    other = authority.issue("other", "localhost")
    locked = authority.issue("locked", "localhost", passphrase=b"secret")
    assert "cert_file" in mistake(replace(good, cert_file=tmp_path / "no.pem"))
    assert "key_file" in mistake(replace(good, key_file=tmp_path / "no.key"))
    assert "PEM" in mistake(replace(good, cert_file=garbage))
    assert "PEM" in mistake(replace(good, key_file=garbage))
    assert "is not the key of" in mistake(replace(good, key_file=other.key_file))
    assert "encrypted" in mistake(TlsConfig(locked.cert_file, locked.key_file))
    verifying = replace(good, client_auth_type="RequireAndVerifyClientCert")
    assert "client_ca_file" in mistake(replace(verifying, client_ca_file=tmp_path / "no.pem"))
    assert "client_ca_file" in mistake(replace(verifying, client_ca_file=garbage))


def test_names_of_a_certificate_are_normalised() -> None:
    certificate = {
        "subjectAltName": (
            ("DNS", "prometheus.example"),
            ("email", "ops@example"),
            ("IP Address", "2001:DB8:0:0:0:0:0:1"),
            ("URI", "spiffe://cluster/prometheus"),
        )
    }
    assert subject_names(certificate) == {
        "prometheus.example",
        "ops@example",
        "2001:db8::1",
        "spiffe://cluster/prometheus",
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert Tls(context).admits(None)
    assert Tls(context, frozenset({"2001:db8::1"})).admits(certificate)
    assert not Tls(context, frozenset({"grafana.example"})).admits(certificate)
    assert not Tls(context, frozenset({"grafana.example"})).admits({})
    assert not Tls(context, frozenset({"grafana.example"})).admits(None)
