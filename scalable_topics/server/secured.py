"""From what an operator has configured to what the daemon needs: keys, rights and certificates."""

import ssl
import time
from collections.abc import Callable
from typing import TypeVar

from scalable_topics.metadata.view import StoreView, ViewChange
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.paths import StorePaths
from scalable_topics.server.auth.authorizer import GrantSource
from scalable_topics.server.auth.keys import VerificationKey, cluster_secrets, public_key, secret_key
from scalable_topics.server.auth.security import HeldKeys, Security, SecuritySettings
from scalable_topics.server.configuration import Configuration, Secret

T = TypeVar("T")


def token_key_of(configuration: Configuration) -> VerificationKey | None:
    """None = authentication is off. `InvalidArgument` for a key that is none, or too weak."""
    security = configuration.security
    if not security.authentication_enabled:
        return None
    if security.token_secret_key is not None:
        return _read(secret_key, security.token_secret_key, "tokenSecretKey")
    if security.token_public_key is not None:
        return _read(public_key, security.token_public_key, "tokenPublicKey")
    raise InvalidArgument("there is no token key", subject="authenticationEnabled", remedy="give tokenSecretKeyFile")


def held_keys(configuration: Configuration) -> HeldKeys:
    """All keys, checked."""
    secret = configuration.security.daemon_secret
    shared = _read(cluster_secrets, secret, "daemonSecret") if secret is not None else None
    return HeldKeys(token_key_of(configuration), shared)


def security_of(
    configuration: Configuration, held: HeldKeys, source: GrantSource, *, broker_id: str, process: str
) -> Security:
    security = configuration.security
    return Security(
        SecuritySettings(super_user_roles=security.super_user_roles),
        source,
        broker_id=broker_id,
        process=process,
        wall_clock=time.time,
        clock=time.monotonic,
        held=held,
        authorizes=security.authorization_enabled,
    )


def forget_what_changes(security: Security, view: StoreView, paths: StorePaths) -> None:
    """What is granted or taken back on another daemon counts here as soon as this one sees it."""
    administered = (f"{paths.root}/tenants/", f"{paths.root}/namespaces/")

    def look(change: ViewChange) -> None:
        if change.listed or any(one.key.startswith(administered) for one in change.changes):
            security.authorizer.forget()

    view.listen(look)


def server_tls(configuration: Configuration) -> ssl.SSLContext | None:
    """For what is listened on; None = plain HTTP."""
    security = configuration.security
    if security.tls_certificate_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=security.tls_trust_file)
    load_certificate(context, configuration)
    if security.tls_require_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(configuration: Configuration) -> ssl.SSLContext | None:
    """For calls to other daemons; shows our own certificate to whom asks for one."""
    if configuration.security.tls_certificate_file is None:
        return None
    context = ssl.create_default_context(cafile=configuration.security.tls_trust_file)
    load_certificate(context, configuration)
    return context


def load_certificate(context: ssl.SSLContext, configuration: Configuration) -> None:
    """What the files hold now; also for a renewed certificate, which new connections get."""
    security = configuration.security
    if security.tls_certificate_file is None:
        return
    try:
        context.load_cert_chain(security.tls_certificate_file, security.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(
            f"the certificate cannot be used: {error}", subject="tlsCertificateFilePath", remedy="give PEM files"
        ) from None


def _read(load: Callable[[bytes], T], secret: Secret, name: str) -> T:
    try:
        return load(secret.reveal())
    except InvalidArgument as error:
        raise InvalidArgument(error.what, subject=name, remedy=error.remedy) from None
