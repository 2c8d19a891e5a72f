"""What must fit together: rules over several keys, each of which is fine by itself."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from scalable_topics.model.errors import InvalidArgument
from scalable_topics.server.configuration.settings import Configuration, is_loopback


class Rule(Struct, frozen=True):
    keys: tuple[str, ...]
    must: str
    """The rule as a sentence, for the reference and the refusal."""
    holds: Callable[[Configuration], bool]
    remedy: str


def _threshold(metric: str, split: Callable[[Configuration], float], merge: Callable[[Configuration], float]) -> Rule:
    names = (f"scalableTopicSplit{metric}Threshold", f"scalableTopicMerge{metric}Threshold")
    return Rule(
        names,
        f"{names[0]} must be above {names[1]}",
        lambda all_: split(all_) > merge(all_),
        "or a segment is too hot and too cold at once",
    )


def _both_or_none(one: str, other: str, given: Callable[[Configuration], tuple[object, object]]) -> Rule:
    def holds(all_: Configuration) -> bool:
        first, second = given(all_)
        return (first is None) is (second is None)

    return Rule((one, other), f"{one} and {other} must be given together", holds, "give both or neither")


RULES: Final = (
    Rule(
        ("scalableTopicMinSegments", "scalableTopicMaxSegments"),
        "scalableTopicMinSegments must be at most scalableTopicMaxSegments",
        lambda all_: all_.autoscale.min_segments <= all_.autoscale.max_segments,
        "lower the first or raise the second",
    ),
    _threshold(
        "MsgRateIn",
        lambda all_: all_.autoscale.split_msg_rate_in_threshold,
        lambda all_: all_.autoscale.merge_msg_rate_in_threshold,
    ),
    _threshold(
        "BytesRateIn",
        lambda all_: all_.autoscale.split_bytes_rate_in_threshold,
        lambda all_: all_.autoscale.merge_bytes_rate_in_threshold,
    ),
    _threshold(
        "MsgRateOut",
        lambda all_: all_.autoscale.split_msg_rate_out_threshold,
        lambda all_: all_.autoscale.merge_msg_rate_out_threshold,
    ),
    _threshold(
        "BytesRateOut",
        lambda all_: all_.autoscale.split_bytes_rate_out_threshold,
        lambda all_: all_.autoscale.merge_bytes_rate_out_threshold,
    ),
    _both_or_none("etcdUsername", "etcdPassword", lambda all_: (all_.store.username, all_.store.password)),
    _both_or_none(
        "etcdCertificateFilePath",
        "etcdKeyFilePath",
        lambda all_: (all_.store.certificate_file, all_.store.key_file),
    ),
    Rule(
        ("etcdAttemptTimeout", "etcdCallTimeout"),
        "etcdAttemptTimeout must be at most etcdCallTimeout",
        lambda all_: all_.store.attempt_seconds <= all_.store.call_seconds,
        "one member cannot get longer than the whole call",
    ),
    Rule(
        ("metadataStoreSessionTimeout",),
        "metadataStoreSessionTimeout must be whole seconds",
        lambda all_: all_.store.session_seconds == int(all_.store.session_seconds),
        "etcd's leases know no fractions",
    ),
    _both_or_none(
        "tlsCertificateFilePath",
        "tlsKeyFilePath",
        lambda all_: (all_.security.tls_certificate_file, all_.security.tls_key_file),
    ),
    Rule(
        ("tlsRequireTrustedClientCertOnConnect", "tlsCertificateFilePath", "tlsTrustCertsFilePath"),
        "tlsRequireTrustedClientCertOnConnect needs tlsCertificateFilePath and tlsTrustCertsFilePath",
        lambda all_: (
            not all_.security.tls_require_client_certificate
            or (all_.security.tls_certificate_file is not None and all_.security.tls_trust_file is not None)
        ),
        "give our certificate, and the authorities that sign theirs",
    ),
    Rule(
        ("authorizationEnabled", "authenticationEnabled"),
        "authorizationEnabled needs authenticationEnabled",
        lambda all_: all_.security.authentication_enabled or not all_.security.authorization_enabled,
        "nobody can be allowed anything before it is known who asks",
    ),
    Rule(
        ("bindAddress", "authenticationEnabled", "allowUnauthenticatedAccess"),
        "bindAddress beyond loopback needs authenticationEnabled, or allowUnauthenticatedAccess",
        lambda all_: (
            all_.security.authentication_enabled
            or all_.daemon.allow_unauthenticated_access
            or all(is_loopback(host) for host in all_.daemon.bind_address)
        ),
        "switch authentication on, or say that everybody may delete everything",
    ),
    Rule(
        ("authenticationEnabled", "tokenSecretKey", "tokenPublicKey"),
        "authenticationEnabled needs tokenSecretKey or tokenPublicKey",
        lambda all_: (
            not all_.security.authentication_enabled
            or all_.security.token_secret_key is not None
            or all_.security.token_public_key is not None
        ),
        "give the key that tokens are checked with, best by tokenSecretKeyFile or tokenPublicKeyFile",
    ),
    Rule(
        ("tokenSecretKey", "tokenPublicKey"),
        "only one of tokenSecretKey and tokenPublicKey may be given",
        lambda all_: all_.security.token_secret_key is None or all_.security.token_public_key is None,
        "with both, it would be the token that says how it is checked",
    ),
)


def broken_rules(configuration: Configuration) -> tuple[Rule, ...]:
    """In the order of the reference. What no rule of ours sees, but a builder refuses, comes last."""
    found = tuple(rule for rule in RULES if not rule.holds(configuration))
    if found:
        return found
    try:
        configuration.policy()
        configuration.etcd_settings()
    except InvalidArgument as error:
        return (Rule((), error.what, lambda _: False, error.remedy or "see docs/configuration.md"),)
    return ()


def advice(configuration: Configuration) -> tuple[str, ...]:
    """What works, and is hardly meant."""
    security = configuration.security
    outside = not all(is_loopback(host) for host in configuration.daemon.bind_address)
    secure = [url for url in configuration.store.endpoints if url.startswith("https:")]
    found = []
    if outside and not security.authentication_enabled:
        found.append("allowUnauthenticatedAccess: whoever reaches the port may delete everything")
    if outside and security.authentication_enabled and not configuration.tls:
        found.append("tlsCertificateFilePath: tokens travel in clear without TLS")
    if security.authentication_enabled and not security.authorization_enabled:
        found.append("authorizationEnabled: whoever has a token may do everything")
    if security.authorization_enabled and not security.super_user_roles:
        found.append("superUserRoles: nobody can make a tenant or call a segment endpoint")
    if secure and len(secure) < len(configuration.store.endpoints):
        found.append("etcdEndpoints: some of them are without TLS")
    if configuration.store.password is not None and not secure:
        found.append("etcdEndpoints: the password travels in clear without TLS")
    return tuple(found)
