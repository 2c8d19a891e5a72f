"""Configuration: one declaration per key, three places to set it, every error at once, no secret in sight."""

import base64
import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable_topics.control.led_topic import ControlSettings
from scalable_topics.metadata.etcd import EtcdSettings
from scalable_topics.metadata.session import DEFAULT_TTL_SECONDS
from scalable_topics.model.autoscale_policy import AutoScalePolicy
from scalable_topics.model.errors import InvalidArgument
from scalable_topics.model.paths import DEFAULT_ROOT
from scalable_topics.server.configuration import (
    KEYS,
    SPELLINGS,
    Configuration,
    Declared,
    InvalidConfiguration,
    Secret,
    advice,
    as_markdown,
    as_toml,
    changed,
    kinds,
    load,
    load_with_origins,
    reloaded,
    shown,
)
from scalable_topics.server.configuration.contradictions import RULES
from scalable_topics.server.configuration.key import flag_of, variable_of
from scalable_topics.server.configuration.written import toml_value

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
KEY = base64.b64encode(b"k" * 32).decode()
HIDDEN_ONES = ("hunter2-hunter2", "-----BEGIN", KEY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "scalable-topics.toml"


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def problems_of(
    file: Path | None = None, environment: dict[str, str] | None = None, flags: dict[str, list[str]] | None = None
) -> list[str]:
    with pytest.raises(InvalidConfiguration) as refusal:
        load(file, environment, flags)
    assert all(str(problem) in str(refusal.value) for problem in refusal.value.problems)
    return [str(problem) for problem in refusal.value.problems]


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_defaults_are_those_of_what_is_built_from_them() -> None:
    configuration = load()

    assert configuration == Configuration()
    assert configuration.policy() == AutoScalePolicy()
    assert configuration.etcd_settings() == EtcdSettings()
    assert configuration.control_settings() == ControlSettings()
    assert configuration.session_ttl_seconds == DEFAULT_TTL_SECONDS
    assert configuration.store.root == DEFAULT_ROOT
    assert configuration.listen_addresses() == (("127.0.0.1", 0),)
    assert configuration.broker_id(8180) == "127.0.0.1:8180"
    assert configuration.web_url(8180) == "http://127.0.0.1:8180"


def test_the_reference_loads_to_the_defaults(file: Path) -> None:
    assert load(write(file, as_toml())) == Configuration()


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_a_key_a_variable_and_a_flag(name: str, file: Path) -> None:
    """With its default, which must be taken from all three."""
    spelling = SPELLINGS[name]
    value = "" if spelling.is_file else spelling.declared.shown_in(Configuration())
    text = ",".join(value) if isinstance(value, list) else str(value)

    assert load(write(file, f"{name} = {toml_value(value)}\n")) == Configuration()
    assert load(environment={variable_of(name): text}) == Configuration()
    if spelling.is_file or not spelling.declared.key.kind.secret:
        assert load(flags={name: [text]}) == Configuration()


def test_every_key_has_a_reason_and_a_sound_declaration() -> None:
    names = [spelling.name for spelling in SPELLINGS.values()]
    assert len({variable_of(name) for name in names}) == len({flag_of(name) for name in names}) == len(names)
    for one in KEYS:
        assert one.doc.endswith("."), one.name
        assert "|" not in one.doc, one.name
    assert {name for rule in RULES for name in rule.keys} <= SPELLINGS.keys()


def test_what_the_pips_and_pulsar_name_is_there_under_that_name() -> None:
    facts = """
        scalableTopicsEnabled=true scalableTopicConsumerSessionGracePeriodSeconds=60s
        scalableTopicAutoScaleEnabled=true scalableTopicAutoScaleIntervalSeconds=60s
        scalableTopicMaxSegments=64 scalableTopicMinSegments=1 scalableTopicMaxDagDepth=10
        scalableTopicEntryBucketBudget=4 scalableTopicSplitCooldownSeconds=60s
        scalableTopicMergeCooldownSeconds=5m scalableTopicMergeWindowSeconds=5m
        scalableTopicSplitMsgRateInThreshold=10000 scalableTopicSplitBytesRateInThreshold=50MB
        scalableTopicSplitMsgRateOutThreshold=50000 scalableTopicSplitBytesRateOutThreshold=250MB
        scalableTopicMergeMsgRateInThreshold=1000 scalableTopicMergeBytesRateInThreshold=5MB
        scalableTopicMergeMsgRateOutThreshold=5000 scalableTopicMergeBytesRateOutThreshold=25MB
        scalableTopicLoadReportIntervalSeconds=10s scalableTopicLoadReportRateChangeThreshold=25%
        scalableTopicEntryBucketMaxPerSegment=1024 scalableTopicRebucketCooldownSeconds=60s
        scalableTopicSplitVsRebucketMinMsgRateInThreshold=1000 scalableTopicEnabled=true
        scalableTopicSealedDrainEnabled=true scalableTopicRebucketDownWindow=30m
        enableScalableTopicMigration=true scalableTopicDagDepthWindow=1h
    """
    for fact in facts.split():
        name, _, default = fact.partition("=")
        value = SPELLINGS[name].declared.shown_in(Configuration())
        assert (value if isinstance(value, str) else toml_value(value)) == default, name


def test_flags_over_environment_over_file_over_defaults(file: Path) -> None:
    write(
        file,
        """
        scalableTopicMaxSegments = 1000
        scalableTopicSplitCooldown = "90s"
        scalableTopicMergeCooldownSeconds = 7
        """,
    )
    loaded = load_with_origins(
        file,
        {
            "SCALABLE_TOPICS_SCALABLE_TOPIC_MAX_SEGMENTS": "100",
            "SCALABLE_TOPICS_SCALABLE_TOPIC_SPLIT_COOLDOWN_SECONDS": "80",
            "SCALABLE_TOPICS_LOG_LEVEL": "",
        },
        {"scalableTopicMaxSegments": ["9", "10"], "etcdEndpoints": ["http://a:1", "http://b:2,http://c:3"]},
    )

    autoscale = loaded.configuration.autoscale
    assert (autoscale.max_segments, autoscale.split_cooldown_seconds, autoscale.merge_cooldown_seconds) == (10, 80, 7)
    assert loaded.configuration.store.endpoints == ("http://a:1", "http://b:2", "http://c:3")
    assert loaded.origins == {
        "scalableTopicMaxSegments": "--scalable-topic-max-segments",
        "scalableTopicSplitCooldown": (
            "SCALABLE_TOPICS_SCALABLE_TOPIC_SPLIT_COOLDOWN_SECONDS as scalableTopicSplitCooldownSeconds"
        ),
        "scalableTopicMergeCooldown": f"{file}:4 as scalableTopicMergeCooldownSeconds",
        "etcdEndpoints": "--etcd-endpoints",
    }


def test_all_errors_at_once_each_with_its_place(file: Path) -> None:
    write(
        file,
        """\
scalableTopicMaxSegment = 3
scalableTopicMinSegments = 70
"scalableTopicSplitMsgRateInThreshold" = 900
scalableTopicSplitCooldown = "1 fortnight"
scalableTopicMergeCooldown = 5
scalableTopicMergeCooldownSeconds = 5
bindAddress = "0.0.0.0"
etcdUsername = "me"
brokerId = 7
[log]
level = "INFO"
""",
    )
    found = problems_of(
        file,
        {"SCALABLE_TOPICS_LOG_FORMT": "x", "SCALABLE_TOPICS_SCALABLE_TOPIC_GC_INTERVAL": "0", "PATH": "/bin"},
        {"webServicePort": ["99999"], "nonsense": ["1"], "logLevel": ["loud"]},
    )

    assert found == [
        f"{file}:1: scalableTopicMaxSegment: there is no such key (did you mean scalableTopicMaxSegments?)",
        f"{file}:10: log: there are no tables (write all keys at the top of the file)",
        "environment: SCALABLE_TOPICS_LOG_FORMT: there is no such key (did you mean SCALABLE_TOPICS_LOG_FORMAT?)",
        "--nonsense: nonsense: there is no such key (`scalable-topics config reference` lists all there are)",
        one_line(f"""{file}:6: scalableTopicMergeCooldownSeconds:
            the same as scalableTopicMergeCooldown, which is given too (remove one of them)"""),
        one_line(f"""{file}:4: scalableTopicSplitCooldown: '1 fortnight' is not a duration
            (write 60s, 5m, 0.5s or a number of seconds)"""),
        f'{file}:9: brokerId: 7 is not text (write it in quotes: "…")',
        "SCALABLE_TOPICS_SCALABLE_TOPIC_GC_INTERVAL: scalableTopicGcInterval: 0s is too little (give more than 0s)",
        "--web-service-port: webServicePort: '99999' is not a port (give 1 to 65535, or 0 for a free one)",
        "--log-level: logLevel: 'loud' is none of the words (use one of DEBUG, INFO, WARNING, ERROR)",
        one_line(f"""{file}:2: scalableTopicMinSegments must be at most scalableTopicMaxSegments:
            scalableTopicMinSegments = 70, scalableTopicMaxSegments = 64 (lower the first or raise the second)"""),
        one_line(f"""{file}:3: scalableTopicSplitMsgRateInThreshold must be above scalableTopicMergeMsgRateInThreshold:
            scalableTopicSplitMsgRateInThreshold = 900, scalableTopicMergeMsgRateInThreshold = 1000
            (or a segment is too hot and too cold at once)"""),
        one_line(f"""{file}:8: etcdUsername and etcdPassword must be given together:
            etcdUsername = "me", etcdPassword = "" (give both or neither)"""),
        one_line(f"""{file}:7: bindAddress beyond loopback needs authenticationEnabled, or allowUnauthenticatedAccess:
            bindAddress = ["0.0.0.0"], authenticationEnabled = false, allowUnauthenticatedAccess = false
            (switch authentication on, or say that everybody may delete everything)"""),
    ]


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("scalableTopicEnabled", '"yes"', "'yes' is not a switch"),
        ("scalableTopicEnabled", "1", "1 is not a switch"),
        ("scalableTopicMaxSegments", "0", "0 is too little (give 1 or more)"),
        ("scalableTopicMaxSegments", "65537", "65537 is too much (give at most 65536)"),
        ("scalableTopicMaxSegments", "true", "True is not a whole number"),
        ("scalableTopicMaxSegments", "1.5", "1.5 is not a whole number"),
        ("scalableTopicMaxSegments", "0x" + "f" * 5000, "this number is far too large"),
        ("scalableTopicSplitCooldown", "nan", "nan is not a duration"),
        ("scalableTopicSplitCooldown", "-1", "-1 is too little (give 0s or more)"),
        ("scalableTopicSplitBytesRateInThreshold", '"many"', "'many' is not an amount"),
        ("scalableTopicSplitMsgRateInThreshold", '"50MB"', "'50MB' is not a number"),
        ("scalableTopicSplitMsgRateInThreshold", "0", "0 is too little (give more than 0)"),
        ("scalableTopicLoadReportRateChangeThreshold", "25", "2500% is too much (give at most 100%)"),
        ("scalableTopicAutoScaleMode", '"manual"', "'manual' is none of the words (use one of auto, advise)"),
        ("defaultRetentionTimeInMinutes", "-2", "-2 is too little (give -1 or more)"),
        ("metadataStoreSessionTimeout", "1", "1s is too little (give 2s or more)"),
        ("metadataStoreSessionTimeout", "3.5", "must be whole seconds"),
        ("metadataStoreRoot", '"topics"', "'topics' is not a prefix of keys"),
        ("etcdEndpoints", '["localhost:2379"]', "'localhost:2379' is not an endpoint"),
        ("etcdEndpoints", "[]", "no endpoints"),
        ("etcdEndpoints", "[1]", "[1] is not a list of texts"),
        ("etcdEndpoints", '["http://u:hunter2-hunter2@host"]', "an endpoint names a user"),
        ("etcdAttemptTimeout", "6", "etcdAttemptTimeout must be at most etcdCallTimeout"),
        ("etcdTrustCertsFilePath", '"/no/such/file"', "'/no/such/file' is not a file"),
        ("tlsKeyFilePath", '"-----BEGIN PRIVATE KEY-----"', "this is what belongs into the file"),
        ("tlsKeyFilePath", '"' + "x" * 5000 + '"', "is not a file"),
        ("tlsCertificateFilePath", f'"{__file__}"', "tlsCertificateFilePath and tlsKeyFilePath must be given together"),
        ("etcdKeyFilePath", f'"{__file__}"', "etcdCertificateFilePath and etcdKeyFilePath must be given together"),
        ("tlsRequireTrustedClientCertOnConnect", "true", "needs tlsCertificateFilePath and tlsTrustCertsFilePath"),
        ("dataDirectory", f'"{__file__}"', "is not a directory"),
        ("dataDirectory", '""', "'' is not a directory"),
        ("brokerId", '"a/b"', "'a/b' is not a name"),
        ("bindAddress", '["127.0.0.1:80"]', "'127.0.0.1:80' is not an address"),
        ("bindAddress", '["999.1.1.1"]', "'999.1.1.1' is not an address"),
        ("bindAddress", '["::"]', "beyond loopback needs authenticationEnabled"),
        ("bindAddress", "[]", "no address"),
        ("authorizationEnabled", "true", "authorizationEnabled needs authenticationEnabled"),
        ("authenticationEnabled", "true", "authenticationEnabled needs tokenSecretKey or tokenPublicKey"),
        ("httpMaxRequestBodySize", '"1B"', "1 is too little (give 1KiB or more)"),
        ("etcdPassword", "12345", "it is not text"),
        ("etcdPassword", '"***"', "*** is what `config show` prints instead of it"),
        ("tokenSecretKey", '"hunter2-hunter2"', "it is not a key"),
        ("tokenSecretKey", '"data:;base64,"', "it is empty"),
        ("tokenSecretKey", '"file:///no/such/hunter2-hunter2"', "the file cannot be read: No such file"),
        ("tokenSecretKeyFile", '"hunter2-hunter2"', "the file cannot be read: No such file"),
        ("etcdPasswordFile", '"/dev/zero"', "the file is larger than 65536 bytes"),
        ("etcdPasswordFile", '"/dev/null"', "the file is empty"),
        ("etcdPasswordFile", "12345", "it is not a path"),
        ("logLevel", "2020-01-01", "is none of the words"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_its_reason(key: str, value: str, what: str, file: Path) -> None:
    (problem,) = problems_of(write(file, f"# a comment\n{key} = {value}\n"))

    assert problem.startswith(f"{file}:2: ")
    assert key in problem
    assert what in problem
    assert len(problem) < 500
    assert not any(secret in problem for secret in HIDDEN_ONES)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (b"a = 1\nlogLevel = INFO\n", ":2", "is not TOML: Invalid value"),
        (b"logLevel = 'INFO'\nlogLevel = 'INFO'\n", ":2", "is not TOML: Cannot overwrite a value"),
        (b"scalableTopicMaxSegments = " + b"1" * 5000, "", "is not TOML"),
        (b"a = " + b"[" * 5000, "", "is not TOML: it is nested too deeply"),
        (b"\xff", "", "is not text"),
        (b"scalableTopic.MaxSegments = 3", ":1", "scalableTopic: there are no tables"),
    ],
)
def test_what_is_no_file_of_ours_is_refused(text: bytes, where: str, what: str, file: Path) -> None:
    file.write_bytes(text)
    (problem,) = problems_of(file)
    assert problem.startswith(f"{file}{where}: ")
    assert what in problem


def test_a_missing_file_is_one_error_among_others(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "none.toml", {"SCALABLE_TOPICS_LOG_LEVEL": "x"}) == [
        f"{tmp_path}/none.toml: cannot be read: No such file or directory (give the path of a TOML file)",
        "SCALABLE_TOPICS_LOG_LEVEL: logLevel: 'x' is none of the words (use one of DEBUG, INFO, WARNING, ERROR)",
    ]


def test_a_wrong_value_that_is_overridden_is_an_error_all_the_same(file: Path) -> None:
    write(file, "scalableTopicMaxSegments = 'many'\nscalableTopicMinSegments = 9\n")
    (problem,) = problems_of(file, flags={"scalableTopicMaxSegments": ["5"]})
    assert problem.startswith(f"{file}:1: scalableTopicMaxSegments: 'many'")


def test_other_variables_of_ours_and_of_kubernetes_are_no_keys() -> None:
    others = {
        "SCALABLE_TOPICS_FAILPOINT": "x@y",
        "SCALABLE_TOPICS_CONFIG": "/etc/x.toml",
        "SCALABLE_TOPICS_SERVICE_HOST": "10.0.0.1",
        "SCALABLE_TOPICS_SERVICE_PORT_HTTP": "80",
        "SCALABLE_TOPICS_PORT": "tcp://10.0.0.1:80",
        "SCALABLE_TOPICS_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load(environment=others) == Configuration()
    del others["SCALABLE_TOPICS_SERVICE_HOST"]
    assert len(problems_of(environment=others)) == 3


def test_secrets_come_from_files_and_are_shown_nowhere(file: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2-hunter2\n")
    (tmp_path / "key").write_bytes(b"\x00raw\n")
    write(
        file,
        f"""
        etcdUsername = "me"
        etcdPasswordFile = "{tmp_path}/password"
        tokenSecretKeyFile = "{tmp_path}/key"
        daemonSecret = "hunter2-hunter2"
        """,
    )
    loaded = load_with_origins(file)
    configuration = loaded.configuration

    assert configuration.etcd_settings().password == "hunter2-hunter2"  # noqa: S105
    assert configuration.security.token_secret_key == Secret(b"\x00raw\n")
    written = [
        repr(loaded),
        str(configuration.store.password),
        f"{configuration.security.daemon_secret}",
        as_toml(configuration, loaded.origins),
        str(shown(configuration)),
        str(changed(Configuration(), configuration)),
        str(
            problems_of(
                file,
                {"SCALABLE_TOPICS_BIND_ADDRESS": "::", "SCALABLE_TOPICS_ETCD_USERNAME": "/"}
                | {"SCALABLE_TOPICS_TOKEN_PUBLIC_KEY": KEY},
            )
        ),
    ]
    assert not any(secret in text for text in written for secret in (*HIDDEN_ONES, "raw"))
    assert shown(configuration)["etcdPassword"] == "***"
    with pytest.raises(TypeError):
        msgspec.json.encode(configuration)


@pytest.mark.parametrize(
    "text",
    [KEY, f"data:;base64,{KEY}", f"data:application/octet-stream;base64,{KEY}", "file://{file}", "file:{file}"],
)
def test_a_key_is_written_as_in_pulsar(text: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    configuration = load(environment={"SCALABLE_TOPICS_TOKEN_SECRET_KEY": text.format(file=tmp_path / "key")})
    assert configuration.security.token_secret_key is not None
    assert configuration.security.token_secret_key.reveal() == b"k" * 32


def test_a_secret_is_not_taken_as_a_flag() -> None:
    (problem,) = problems_of(flags={"daemonSecret": ["hunter2-hunter2"]})
    assert "use --daemon-secret-file, or SCALABLE_TOPICS_DAEMON_SECRET" in problem
    assert "hunter2" not in problem


def test_the_daemon_gets_what_it_needs(file: Path) -> None:
    write(
        file,
        """
        brokerId = "one"
        bindAddress = ["0.0.0.0", "::1"]
        webServicePort = 9000
        advertisedAddress = "fd00::1"
        allowUnauthenticatedAccess = true
        etcdEndpoints = ["https://a:2379", "https://b:2379"]
        etcdCallTimeout = 3
        defaultRetentionTimeInMinutes = "7d"
        scalableTopicGcInterval = "500ms"
        scalableTopicAutoScaleEnabled = false
        scalableTopicSplitBytesRateInThreshold = "1GiB"
        scalableTopicDagDepthWindow = 0
        """,
    )
    configuration = load(file)

    assert configuration.broker_id(1) == "one"
    assert configuration.listen_addresses() == (("0.0.0.0", 9000), ("::1", 9000))  # noqa: S104
    assert configuration.web_url(9000) == "http://[fd00::1]:9000"
    assert configuration.etcd_settings() == EtcdSettings(endpoints=("https://a:2379", "https://b:2379"), call_seconds=3)
    assert configuration.control_settings() == ControlSettings(gc_interval_seconds=0.5, retention_minutes=10_080)
    assert configuration.policy() == AutoScalePolicy(
        enabled=False, split_bytes_rate_in_threshold=1 << 30, dag_depth_window_seconds=0
    )
    assert configuration.policy_override()["splitBytesRateInThreshold"] == 1 << 30


def test_what_works_and_is_hardly_meant_is_said() -> None:
    assert advice(Configuration()) == ()
    environment = {
        "SCALABLE_TOPICS_BIND_ADDRESS": "0.0.0.0",  # noqa: S104
        "SCALABLE_TOPICS_AUTHENTICATION_ENABLED": "true",
        "SCALABLE_TOPICS_TOKEN_SECRET_KEY": KEY,
    }
    assert [line.partition(":")[0] for line in advice(load(environment=environment))] == [
        "tlsCertificateFilePath",
        "authorizationEnabled",
    ]


def test_a_reload_applies_what_it_can_and_names_the_rest() -> None:
    before = Configuration()
    wanted = load(
        environment={
            "SCALABLE_TOPICS_SUPER_USER_ROLES": "root",
            "SCALABLE_TOPICS_TOKEN_SECRET_KEY": KEY,
            "SCALABLE_TOPICS_WEB_SERVICE_PORT": "9000",
        }
    )
    applied, needs_restart = changed(before, wanted)

    assert [str(change) for change in applied] == ['tokenSecretKey: "" -> "***"', 'superUserRoles: [] -> ["root"]']
    assert [str(change) for change in needs_restart] == ["webServicePort: 0 -> 9000"]
    after = reloaded(before, wanted)
    assert (after.security.super_user_roles, after.daemon.web_service_port) == (("root",), 0)
    assert changed(after, wanted) == ((), needs_restart)
    assert changed(wanted, wanted) == ((), ())


def test_a_rotated_key_is_a_change_although_its_file_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"a" * 32)
    environment = {"SCALABLE_TOPICS_TOKEN_SECRET_KEY_FILE": str(tmp_path / "key")}
    before = load(environment=environment)
    (tmp_path / "key").write_bytes(b"b" * 32)
    assert [change.key for change in changed(before, load(environment=environment)).applied] == ["tokenSecretKey"]


def test_a_reload_that_would_not_fit_together_changes_nothing() -> None:
    running = load(
        environment={
            "SCALABLE_TOPICS_AUTHENTICATION_ENABLED": "true",
            "SCALABLE_TOPICS_TOKEN_SECRET_KEY": KEY,
        }
    )
    with pytest.raises(InvalidArgument, match="authenticationEnabled needs tokenSecretKey"):
        reloaded(running, Configuration())


def test_the_document_is_the_reference() -> None:
    assert DOCUMENT.read_text() == as_markdown(), "run: scalable-topics config reference > docs/configuration.md"


def test_the_document_has_a_row_for_every_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\|$", DOCUMENT.read_text(), re.MULTILINE)
    assert rows == [one.name for one in KEYS]


def values(kind: kinds.Kind) -> st.SearchStrategy[object]:
    numbers = st.one_of(
        st.integers(0, 10**7), st.floats(0, 1e12), st.sampled_from([60, 3600, 86_400, 5_000_000, 1 << 24])
    )
    texts = st.text("abc xyz.é\x7f\"\\'😀", max_size=8)
    by_kind: dict[str, st.SearchStrategy[object]] = {
        kinds.FLAG.name: st.booleans(),
        kinds.COUNT.name: st.integers(1, 1000),
        kinds.PORT.name: st.integers(0, 65_535),
        kinds.NAMES.name: st.lists(texts, max_size=3),
        kinds.TEXT.name: texts,
    }
    return by_kind.get(kind.name, numbers)


PLAIN_KINDS = {
    kind.name: kind
    for kind in (
        *(kinds.FLAG, kinds.COUNT, kinds.NUMBER, kinds.PORT, kinds.DURATION, kinds.MINUTES, kinds.SIZE, kinds.RATE),
        *(kinds.BYTE_RATE, kinds.SHARE, kinds.NAMES, kinds.TEXT),
    )
}


@given(st.data())
def test_what_is_shown_is_read_as_the_same(data: st.DataObject) -> None:
    kind = PLAIN_KINDS[data.draw(st.sampled_from(sorted(PLAIN_KINDS)))]
    value = kind.parse(data.draw(values(kind)))
    assert kind.parse(kind.show(value)) == value
    assert kind.parse(kind.show(kind.parse(kind.show(value)))) == value


SCALAR_KEYS = [
    one for one in KEYS if one.key.kind.name in PLAIN_KINDS and one.section in {"autoscale", "topics", "limits"}
]


@given(data=st.data())
def test_a_configuration_that_is_written_down_loads_as_itself(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(SCALAR_KEYS), unique_by=lambda one: one.name, max_size=8))
    environment = {one.key.variable: str(data.draw(values(one.key.kind))) for one in chosen}
    try:
        configuration = load(environment=environment)
    except InvalidConfiguration:
        return
    file = tmp_path_factory.getbasetemp() / "written.toml"
    assert load(write(file, as_toml(configuration))) == configuration


hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from([10**400, -(10**400), math.inf, "1" * 30, "\0", "file:\0", "\ud800"]),
)


@given(st.sampled_from(KEYS), hostile)
def test_any_value_is_taken_or_refused_and_nothing_else(one: Declared, value: object) -> None:
    key = one.key
    try:
        parsed = key.parse(value)
    except InvalidArgument as refusal:
        assert len(str(refusal)) < 1000
    else:
        toml_value(key.kind.show(parsed)).encode()


@given(text=st.one_of(st.text(max_size=60), st.text("ab=.[]\"'\\n1-{},#", max_size=30)))
def test_any_file_is_loaded_or_refused_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "hostile.toml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load(file)
    except InvalidConfiguration as refusal:
        assert all(problem.where.startswith(str(file)) for problem in refusal.problems)
