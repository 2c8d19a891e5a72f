"""Every key there is: its name, type, unit, default and reason. What is not declared here cannot be configured.

A section is a group for people; in the file all keys stand side by side. The docstring of a field is its line in the
reference (docs/configuration.md).
"""

import socket
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct
from msgspec.structs import fields

from scalable_topics.control.led_topic import ControlSettings
from scalable_topics.metadata.etcd import EtcdSettings
from scalable_topics.model.autoscale_policy import (
    AutoScaleMode,
    AutoScalePolicy,
    AutoScalePolicyOverride,
    resolve_policy,
)
from scalable_topics.model.hash_range import RING_SIZE
from scalable_topics.server.configuration import kinds
from scalable_topics.server.configuration.key import Key
from scalable_topics.server.configuration.secret import Secret

_DAY: Final = 86_400.0
_DEPTH: Final = 1_000_000
_MODE: Final = kinds.choice(AutoScaleMode)


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    """TEXT is for people, JSON for what collects logs."""

    TEXT = "text"
    JSON = "json"


class Daemon(Struct, frozen=True, kw_only=True):
    """Who this daemon is and where it listens."""

    broker_id: Annotated[str | None, Key(name="brokerId", kind=kinds.OPTIONAL_NAME, flag="broker-id")] = None
    """Name of this daemon alone; two with one name stop each other. Empty = the advertised address and port, as in
    Pulsar; set it when the port is not fixed.
    """
    cluster_name: Annotated[str, Key(name="clusterName", kind=kinds.NAME, flag="cluster")] = "standalone"
    """The same for all daemons that share a root in the store; a root of another cluster is refused."""
    data_directory: Annotated[Path, Key(name="dataDirectory", kind=kinds.DIRECTORY, flag="data")] = Path("data")
    """Embedded segments, shared by the daemons of one machine. Relative to where the daemon is started."""
    bind_address: Annotated[tuple[str, ...], Key(name="bindAddress", kind=kinds.HOSTS, flag="bind")] = ("127.0.0.1",)
    """Addresses to listen on. Loopback, because a daemon without authentication obeys whoever reaches it."""
    web_service_port: Annotated[int, Key(name="webServicePort", kind=kinds.PORT, flag="port")] = 0
    """Port of REST and streams, on each address; 0 = a free one, told when the daemon is ready. Where it must be found
    take 8180, say: 8080 is the broker's beside us. It speaks HTTPS when `tlsCertificateFilePath` is set.
    """
    advertised_address: Annotated[str | None, Key(name="advertisedAddress", kind=kinds.HOST)] = None
    """Where other daemons and clients reach this one. Empty = the first address it is bound to, or the machine's name
    when that is a wildcard.
    """
    allow_unauthenticated_access: Annotated[bool, Key(name="allowUnauthenticatedAccess", kind=kinds.FLAG)] = False
    """Listen beyond loopback although `authenticationEnabled` is false. For networks in which everybody may delete
    everything.
    """


class MetadataStore(Struct, frozen=True, kw_only=True):
    """The etcd in which everything is kept that must survive."""

    endpoints: Annotated[tuple[str, ...], Key(name="etcdEndpoints", kind=kinds.ENDPOINTS, flag="etcd")] = (
        "http://127.0.0.1:2379",
    )
    """Client URLs of its members. They are tried in this order."""
    username: Annotated[str | None, Key(name="etcdUsername", kind=kinds.TEXT)] = None
    """Empty = etcd asks for none."""
    password: Annotated[Secret | None, Key(name="etcdPassword", kind=kinds.PASSWORD)] = None
    """Of that user."""
    trust_file: Annotated[Path | None, Key(name="etcdTrustCertsFilePath", kind=kinds.FILE)] = None
    """PEM of the authorities that sign etcd's certificates. Empty = the system's."""
    certificate_file: Annotated[Path | None, Key(name="etcdCertificateFilePath", kind=kinds.FILE)] = None
    """PEM of the certificate we show to etcd, if it wants one."""
    key_file: Annotated[Path | None, Key(name="etcdKeyFilePath", kind=kinds.FILE)] = None
    """PEM of its key."""
    call_seconds: Annotated[float, Key(name="etcdCallTimeout", kind=kinds.DURATION, above=0, at_most=60)] = 5
    """Deadline of one call, all members together."""
    attempt_seconds: Annotated[float, Key(name="etcdAttemptTimeout", kind=kinds.DURATION, above=0, at_most=60)] = 2
    """What one member gets before the next is asked: a stopped process takes connections and never answers."""
    slow_seconds: Annotated[float, Key(name="etcdSlowAfter", kind=kinds.DURATION, above=0, at_most=60)] = 0.5
    """A member that took longer is left for the next one, so that one slow member does not slow everything."""
    root: Annotated[str, Key(name="metadataStoreRoot", kind=kinds.ROOT, flag="root")] = "/scalable-topics"
    """Prefix of all our keys. PIP-468's paths follow it."""
    session_seconds: Annotated[
        float,
        Key(name="metadataStoreSessionTimeout", kind=kinds.DURATION, flag="ttl", at_least=2, at_most=3600),
    ] = 10
    """Of the lease, in whole seconds: how long a daemon that died still counts. Shorter fails over sooner, and takes a
    pause for a death sooner.
    """


class Topics(Struct, frozen=True, kw_only=True):
    """What scalable topics are and do, apart from scaling."""

    enabled: Annotated[bool, Key(name="scalableTopicEnabled", kind=kinds.FLAG, aliases=("scalableTopicsEnabled",))] = (
        True
    )
    """False: changes and streams are refused with 412 and nothing runs by itself. What is stored stays as it is, and
    true resumes.
    """
    migration_enabled: Annotated[bool, Key(name="enableScalableTopicMigration", kind=kinds.FLAG)] = True
    """False: no regular topic becomes a scalable one (PIP-475's kill switch)."""
    require_namespace: Annotated[bool, Key(name="requireNamespace", kind=kinds.FLAG)] = False
    """True: a topic is only made in a namespace that somebody created, as in Pulsar. False: a namespace is there when
    it is used, which suits a daemon by itself.
    """
    consumer_session_grace_seconds: Annotated[
        float,
        Key(name="scalableTopicConsumerSessionGracePeriod", kind=kinds.DURATION, at_least=1, at_most=_DAY),
    ] = 60
    """How long the segments of a consumer that is away are kept for it."""
    sealed_drain_enabled: Annotated[bool, Key(name="scalableTopicSealedDrainEnabled", kind=kinds.FLAG)] = True
    """A sealed segment's backlog may be shared by several consumers for as long as it lasts (PIP-486). False: it goes
    whole to one.
    """
    retention_minutes: Annotated[
        float,
        Key(name="defaultRetentionTimeInMinutes", kind=kinds.MINUTES, at_least=-1),
    ] = 0
    """How long a drained segment is kept where neither its topic nor its namespace say; -1 = for ever. A plain number
    is minutes.
    """
    gc_interval_seconds: Annotated[
        float,
        Key(name="scalableTopicGcInterval", kind=kinds.DURATION, flag="gc-interval", above=0, at_most=_DAY),
    ] = 300
    """How often drained segments are looked for and garbage is deleted."""


class AutoScale(Struct, frozen=True, kw_only=True):
    """When a topic gets more or fewer segments (PIP-483, PIP-486). Namespaces and topics may override all of these
    except the interval of evaluation and the two of load reports.
    """

    enabled: Annotated[bool, Key(name="scalableTopicAutoScaleEnabled", kind=kinds.FLAG)] = True
    """False: nothing is split or merged by itself anywhere."""
    mode: Annotated[AutoScaleMode, Key(name="scalableTopicAutoScaleMode", kind=_MODE)] = AutoScaleMode.AUTO
    """auto acts; advise recommends and waits for a person."""
    interval_seconds: Annotated[
        float, Key(name="scalableTopicAutoScaleInterval", kind=kinds.DURATION, at_least=1, at_most=_DAY)
    ] = 60
    """Between two evaluations of a topic by its traffic. Consumers that come and go are answered at once."""
    max_segments: Annotated[
        int, Key(name="scalableTopicMaxSegments", kind=kinds.COUNT, at_least=1, at_most=RING_SIZE)
    ] = 64
    """Active segments at which splits stop. Bounds metadata and open ledgers of a topic."""
    min_segments: Annotated[
        int, Key(name="scalableTopicMinSegments", kind=kinds.COUNT, at_least=1, at_most=RING_SIZE)
    ] = 1
    """Active segments at which merges stop."""
    max_dag_depth: Annotated[
        int, Key(name="scalableTopicMaxDagDepth", kind=kinds.COUNT, at_least=0, at_most=_DEPTH)
    ] = 10
    """Merges in one lineage before merging stops for it. Never stops a split."""
    dag_depth_window_seconds: Annotated[
        float, Key(name="scalableTopicDagDepthWindow", kind=kinds.DURATION, at_least=0)
    ] = 3600
    """A segment that has stood for this long counts as depth 0: the cap is against churn, and a topic with day and
    night must still merge on its eleventh night. 0 = depth is never forgiven, PIP-483's letter.
    """
    max_new_segments_per_evaluation: Annotated[
        int,
        Key(
            name="scalableTopicMaxNewSegmentsPerEvaluation",
            kind=kinds.COUNT,
            at_least=1,
            at_most=RING_SIZE,
        ),
    ] = 1
    """How many segments one evaluation may add. 1 is PIP-483's one midpoint split; more reaches a steep load sooner."""
    split_cooldown_seconds: Annotated[
        float, Key(name="scalableTopicSplitCooldown", kind=kinds.DURATION, at_least=0)
    ] = 60
    """At least this long between two automatic splits of a topic, so that a burst of triggers is one split."""
    merge_cooldown_seconds: Annotated[
        float, Key(name="scalableTopicMergeCooldown", kind=kinds.DURATION, at_least=0)
    ] = 300
    """At least this long between two automatic merges of a topic. Longer than for splits: being too few hurts more."""
    merge_window_seconds: Annotated[float, Key(name="scalableTopicMergeWindow", kind=kinds.DURATION, at_least=0)] = 300
    """How long both segments of a pair must have been cold before they are merged."""
    rebucket_cooldown_seconds: Annotated[
        float, Key(name="scalableTopicRebucketCooldown", kind=kinds.DURATION, at_least=0)
    ] = 60
    """At least this long between two automatic changes of a topic's buckets."""
    rebucket_down_window_seconds: Annotated[
        float, Key(name="scalableTopicRebucketDownWindow", kind=kinds.DURATION, at_least=0)
    ] = 1800
    """How long fewer buckets must have been enough before they are lowered; 0 = never."""
    split_msg_rate_in_threshold: Annotated[
        float, Key(name="scalableTopicSplitMsgRateInThreshold", kind=kinds.RATE, above=0)
    ] = 10_000
    """Messages/s into one segment above which it is split."""
    split_bytes_rate_in_threshold: Annotated[
        float, Key(name="scalableTopicSplitBytesRateInThreshold", kind=kinds.BYTE_RATE, above=0)
    ] = 50_000_000
    """Bytes/s into one segment above which it is split."""
    split_msg_rate_out_threshold: Annotated[
        float, Key(name="scalableTopicSplitMsgRateOutThreshold", kind=kinds.RATE, above=0)
    ] = 50_000
    """Messages/s out of one segment, all subscriptions together, above which it is split."""
    split_bytes_rate_out_threshold: Annotated[
        float, Key(name="scalableTopicSplitBytesRateOutThreshold", kind=kinds.BYTE_RATE, above=0)
    ] = 250_000_000
    """Bytes/s out of one segment, all subscriptions together, above which it is split."""
    merge_msg_rate_in_threshold: Annotated[
        float, Key(name="scalableTopicMergeMsgRateInThreshold", kind=kinds.RATE, at_least=0)
    ] = 1_000
    """Two neighbours are merged when they are below all four merge thresholds. 0 = never merge; so for the next three.
    """
    merge_bytes_rate_in_threshold: Annotated[
        float, Key(name="scalableTopicMergeBytesRateInThreshold", kind=kinds.BYTE_RATE, at_least=0)
    ] = 5_000_000
    """The same for bytes/s in."""
    merge_msg_rate_out_threshold: Annotated[
        float, Key(name="scalableTopicMergeMsgRateOutThreshold", kind=kinds.RATE, at_least=0)
    ] = 5_000
    """The same for messages/s out."""
    merge_bytes_rate_out_threshold: Annotated[
        float, Key(name="scalableTopicMergeBytesRateOutThreshold", kind=kinds.BYTE_RATE, at_least=0)
    ] = 25_000_000
    """The same for bytes/s out."""
    split_vs_rebucket_min_msg_rate_in_threshold: Annotated[
        float, Key(name="scalableTopicSplitVsRebucketMinMsgRateInThreshold", kind=kinds.RATE, at_least=0)
    ] = 1_000
    """Consumers beyond the segments get a new segment above this many messages/s, and more buckets below it."""
    entry_bucket_budget: Annotated[
        int, Key(name="scalableTopicEntryBucketBudget", kind=kinds.COUNT, at_least=0, at_most=RING_SIZE)
    ] = 4
    """Entry buckets of a whole topic, shared by its segments, when nobody asks for more."""
    entry_bucket_max_per_segment: Annotated[
        int,
        Key(name="scalableTopicEntryBucketMaxPerSegment", kind=kinds.COUNT, at_least=1, at_most=RING_SIZE),
    ] = 1024
    """The most entry buckets of one segment, and so the most consumers that can share it in order."""
    load_report_interval_seconds: Annotated[
        float,
        Key(name="scalableTopicLoadReportInterval", kind=kinds.DURATION, at_least=0.1, at_most=3600),
    ] = 10
    """How often an owner samples the rates of its segments."""
    load_report_change_threshold: Annotated[
        float,
        Key(name="scalableTopicLoadReportRateChangeThreshold", kind=kinds.SHARE, at_least=0, at_most=1),
    ] = 0.25
    """A rate is written when it has moved by more than this share of what was last written."""


class Security(Struct, frozen=True, kw_only=True):
    """Who may do what. The names are those of Pulsar's broker.conf."""

    authentication_enabled: Annotated[bool, Key(name="authenticationEnabled", kind=kinds.FLAG)] = False
    """True: every request needs a JWT whose `sub` is the caller's role."""
    authorization_enabled: Annotated[bool, Key(name="authorizationEnabled", kind=kinds.FLAG)] = False
    """True: the role must have been granted what it asks for."""
    token_secret_key: Annotated[Secret | None, Key(name="tokenSecretKey", kind=kinds.KEY, live=True)] = None
    """Key of HS256 tokens: base64, `data:;base64,…` or `file:///…`. The file holds its bytes as they are."""
    token_public_key: Annotated[Secret | None, Key(name="tokenPublicKey", kind=kinds.KEY, live=True)] = None
    """Public key of RS256 tokens, written alike; DER or PEM."""
    super_user_roles: Annotated[tuple[str, ...], Key(name="superUserRoles", kind=kinds.NAMES, live=True)] = ()
    """Roles that may do everything, segment endpoints included."""
    daemon_secret: Annotated[Secret | None, Key(name="daemonSecret", kind=kinds.PASSWORD)] = None
    """What the daemons of a cluster prove to each other that they are daemons. The same for all of them."""
    tls_certificate_file: Annotated[Path | None, Key(name="tlsCertificateFilePath", kind=kinds.FILE)] = None
    """PEM of our certificate, its chain included. Empty = no TLS. What is in the file is read again on SIGHUP."""
    tls_key_file: Annotated[Path | None, Key(name="tlsKeyFilePath", kind=kinds.FILE)] = None
    """PEM of its key."""
    tls_trust_file: Annotated[Path | None, Key(name="tlsTrustCertsFilePath", kind=kinds.FILE)] = None
    """PEM of the authorities that sign the certificates of other daemons and of clients. Empty = the system's."""
    tls_require_client_certificate: Annotated[
        bool, Key(name="tlsRequireTrustedClientCertOnConnect", kind=kinds.FLAG)
    ] = False
    """True: a connection without a certificate of such an authority is refused."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one caller may ask of the daemon."""

    body_bytes: Annotated[
        int,
        Key(name="httpMaxRequestBodySize", kind=kinds.SIZE, at_least=1 << 10, at_most=1 << 30),
    ] = 16 << 20
    """Of one request; more is refused with 413."""
    header_bytes: Annotated[
        int, Key(name="httpMaxRequestHeaderSize", kind=kinds.SIZE, at_least=1 << 10, at_most=1 << 20)
    ] = 8 << 10
    """Of one header line, and of the request line."""
    request_seconds: Annotated[float, Key(name="httpRequestTimeout", kind=kinds.DURATION, at_least=1, at_most=3600)] = (
        60
    )
    """How long a request may take to arrive."""
    connections: Annotated[
        int, Key(name="maxHttpServerConnections", kind=kinds.COUNT, at_least=1, at_most=1_000_000)
    ] = 2048
    """At the same time, from everybody together."""
    requests_per_second: Annotated[float, Key(name="httpRequestsMaxPerSecond", kind=kinds.NUMBER, at_least=0)] = 0
    """From one address; more is refused with 429. 0 = no limit, as in Pulsar."""


class Logging(Struct, frozen=True, kw_only=True):
    """What the daemon writes to standard error."""

    level: Annotated[LogLevel, Key(name="logLevel", kind=kinds.choice(LogLevel), live=True, flag="log-level")] = (
        LogLevel.INFO
    )
    """The least that is written."""
    format: Annotated[LogFormat, Key(name="logFormat", kind=kinds.choice(LogFormat), flag="log-format")] = (
        LogFormat.TEXT
    )
    """text for people, json for what collects logs."""


class Configuration(Struct, frozen=True, kw_only=True):
    """All of it, and what the daemon is built from. `load` makes only such as fit together."""

    daemon: Daemon = Daemon()
    store: MetadataStore = MetadataStore()
    topics: Topics = Topics()
    autoscale: AutoScale = AutoScale()
    security: Security = Security()
    limits: Limits = Limits()
    logging: Logging = Logging()

    def etcd_settings(self) -> EtcdSettings:
        store = self.store
        return EtcdSettings(
            endpoints=store.endpoints,
            call_seconds=store.call_seconds,
            attempt_seconds=store.attempt_seconds,
            slow_seconds=store.slow_seconds,
            username=store.username,
            password=store.password.reveal_text() if store.password is not None else None,
            ca_file=_text(store.trust_file),
            certificate_file=_text(store.certificate_file),
            key_file=_text(store.key_file),
        )

    def control_settings(self) -> ControlSettings:
        return ControlSettings(
            gc_interval_seconds=self.topics.gc_interval_seconds, retention_minutes=self.topics.retention_minutes
        )

    def policy_override(self) -> AutoScalePolicyOverride:
        """The cluster's level for `effective_policy`, beneath namespace and topic."""
        return {field.encode_name: getattr(self.autoscale, field.name) for field in fields(AutoScalePolicy)}

    def policy(self) -> AutoScalePolicy:
        """Of a topic that nobody has said anything about."""
        return resolve_policy(self.policy_override())

    @property
    def session_ttl_seconds(self) -> int:
        return int(self.store.session_seconds)

    @property
    def tls(self) -> bool:
        return self.security.tls_certificate_file is not None

    def listen_addresses(self) -> tuple[tuple[str, int], ...]:
        return tuple((host, self.daemon.web_service_port) for host in self.daemon.bind_address)

    def advertised_host(self) -> str:
        first = self.daemon.bind_address[0]
        return self.daemon.advertised_address or (socket.gethostname() if is_wildcard(first) else first)

    def web_url(self, port: int) -> str:
        """Where others reach us; `port` is the one that was bound."""
        host = self.advertised_host()
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def broker_id(self, port: int) -> str:
        return self.daemon.broker_id or f"{self.advertised_host()}:{port}"


def is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
