"""Builds a server's TLS context from the web configuration. A value that Python's ssl does not support is an error."""

import ipaddress
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucommons.faces.web.access.web_config import TlsConfig, WebConfigError

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# Go's names of the cipher suites that it calls secure, and OpenSSL's names.
_CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
# Go does not let a server choose among these for TLS 1.3; naming them in the file has no effect.
_TLS13_CIPHERS = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})

PeerCertificate = Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Tls:
    """A context, and the names of the clients that may connect. Compared by identity: each load makes another one."""

    context: ssl.SSLContext
    allowed_sans: frozenset[str] = frozenset()

    @property
    def requires_certificate(self) -> bool:
        return self.context.verify_mode is ssl.CERT_REQUIRED

    def admits(self, certificate: PeerCertificate | None) -> bool:
        """Whether the peer's verified certificate has one of the allowed names."""
        return not self.allowed_sans or not self.allowed_sans.isdisjoint(subject_names(certificate))


def subject_names(certificate: PeerCertificate | None) -> frozenset[str]:
    """DNS names, e-mail addresses, IP addresses and URIs of a certificate."""
    entries = (certificate or {}).get("subjectAltName", ())
    if not isinstance(entries, tuple):
        return frozenset()
    return frozenset(_normal(str(value)) for _kind, value in entries)


def _normal(name: str) -> str:
    """The canonical form of an IP address, since OpenSSL formats IPv6 differently; any other name is unchanged."""
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name


def build_tls(config: TlsConfig, file: Path) -> Tls:
    """`file` is the web configuration, for messages."""

    def mistake(key: str, what: str) -> WebConfigError:
        return WebConfigError(f"{file}: tls_server_config.{key}: {what}")

    if config.client_auth_type not in _VERIFY:
        raise mistake(
            "client_auth_type",
            f"{config.client_auth_type} accepts unverified certificates and is not supported; "
            f"use one of {', '.join(_VERIFY)}",
        )
    for key, version in (("min_version", config.min_version), ("max_version", config.max_version)):
        if version not in _VERSIONS:
            raise mistake(key, f"{version} is insecure and not supported; use TLS12 or TLS13")
    if len(config.curve_preferences) > 1:
        raise mistake("curve_preferences", "only one curve is supported; name one, or leave the key out")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = (
        _VERSIONS[config.min_version],
        _VERSIONS[config.max_version],
    )
    if not config.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.curve_preferences:
        context.set_ecdh_curve(_CURVES[config.curve_preferences[0]])
    _set_ciphers(context, config, mistake)
    _load_certificate(context, config, mistake)
    context.verify_mode = _VERIFY[config.client_auth_type]
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(config.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise mistake("client_ca_file", _why(config.client_ca_file, error)) from error
    return Tls(context, frozenset(map(_normal, config.client_allowed_sans)))


_Mistake = Callable[[str, str], WebConfigError]


def _set_ciphers(context: ssl.SSLContext, config: TlsConfig, mistake: _Mistake) -> None:
    for name in config.cipher_suites:
        if name not in _CIPHERS and name not in _TLS13_CIPHERS:
            supported = ", ".join(sorted((*_CIPHERS, *_TLS13_CIPHERS)))
            raise mistake("cipher_suites", f"unknown cipher suite {name!r}; use one of {supported}")
    ciphers = [_CIPHERS[name] for name in config.cipher_suites if name in _CIPHERS]
    if ciphers:
        try:
            context.set_ciphers(":".join(ciphers))
        except ssl.SSLError as error:
            raise mistake("cipher_suites", "OpenSSL on this machine allows none of them") from error
    elif config.cipher_suites:
        # Only suites of TLS 1.3 are named, so TLS 1.2 has none.
        if config.max_version != "TLS13":
            raise mistake("cipher_suites", "names only suites of TLS 1.3, which max_version excludes")
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _load_certificate(context: ssl.SSLContext, config: TlsConfig, mistake: _Mistake) -> None:
    for key, path in (("cert_file", config.cert_file), ("key_file", config.key_file)):
        try:
            path.read_bytes()
        except OSError as error:
            raise mistake(key, _why(path, error)) from error

    def refuse_password() -> str:
        # Without this OpenSSL would prompt on the terminal.
        raise mistake("key_file", f"{config.key_file} is encrypted; use a key without a passphrase")

    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=refuse_password)
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise mistake("key_file", f"{config.key_file} is not the key of {config.cert_file}") from error
        raise mistake(
            "cert_file", f"{config.cert_file} and {config.key_file} do not contain a PEM certificate and key"
        ) from error


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{path} does not contain PEM certificates"
    return f"{path} cannot be read: {error.strerror or error}"
