"""`scalable-topics config` as an operator types it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from scalable_topics.cli.main import main
from scalable_topics.server.configuration import as_markdown, as_toml

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_check_tells_that_all_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == "the configuration is right\n"


def test_check_tells_all_that_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text("scalableTopicMaxSegment = 3\nscalableTopicMinSegments = 70\n")
    monkeypatch.setenv("SCALABLE_TOPICS_CONFIG", "mine.toml")
    monkeypatch.setenv("SCALABLE_TOPICS_LOG_LEVEL", "loud")

    assert main(["config", "check", "--port", "http"]) == 2
    told = capsys.readouterr()

    assert told.out == ""
    fit = "scalableTopicMinSegments = 70, scalableTopicMaxSegments = 64 (lower the first or raise the second)"
    assert told.err.splitlines() == [
        "scalable-topics: the configuration has 4 errors:",
        "  mine.toml:1: scalableTopicMaxSegment: there is no such key (did you mean scalableTopicMaxSegments?)",
        "  SCALABLE_TOPICS_LOG_LEVEL: logLevel: 'loud' is none of the words (use one of DEBUG, INFO, WARNING, ERROR)",
        "  --web-service-port: webServicePort: 'http' is not a whole number (give a whole number)",
        f"  mine.toml:2: scalableTopicMinSegments must be at most scalableTopicMaxSegments: {fit}",
    ]


def test_check_tells_what_a_reload_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.toml").write_text("logLevel = 'DEBUG'\n")
    Path("new.toml").write_text("bindAddress = '0.0.0.0'\nallowUnauthenticatedAccess = true\n")

    assert main(["config", "check", "--config", "new.toml", "--since", "old.toml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "note: allowUnauthenticatedAccess: whoever reaches the port may delete everything",
        'at run time: logLevel: "DEBUG" -> "INFO"',
        'needs a restart: bindAddress: ["127.0.0.1"] -> ["0.0.0.0"]',
        "needs a restart: allowUnauthenticatedAccess: false -> true",
        "the configuration is right",
    ]


def test_show_prints_what_is_in_force_where_it_came_from_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text("scalableTopicMaxSegments = 32\ndaemonSecretFile = 'secret'\n")
    Path("secret").write_text("hunter2\n")
    monkeypatch.setenv("SCALABLE_TOPICS_LOG_LEVEL", "debug")
    command = ["config", "show", "--config", "mine.toml", "--etcd", "http://a:1", "--etcd-endpoints", "http://b:2"]

    assert main(command) == 0
    told = capsys.readouterr().out
    for line in (
        "scalableTopicMaxSegments = 32  # mine.toml:1",
        'daemonSecret = "***"  # mine.toml:2 as daemonSecretFile',
        'logLevel = "DEBUG"  # SCALABLE_TOPICS_LOG_LEVEL',
        'etcdEndpoints = ["http://a:1","http://b:2"]  # --etcd-endpoints',
        'scalableTopicMergeWindow = "5m"  # default',
    ):
        assert line in told.splitlines()
    assert "hunter2" not in told

    assert main([*command, "-o", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["scalableTopicMaxSegments"], values["daemonSecret"]) == (32, "***")


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--etcd-password", "hunter2"]) == 2
    told = capsys.readouterr().err
    assert "use --etcd-password-file" in told
    assert "hunter2" not in told


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is added tomorrow must not change what one of today means."""
    with pytest.raises(SystemExit):
        main(["config", "check", "--scalable-topic-max-seg", "3"])
    assert "unrecognized arguments" in capsys.readouterr().err


def test_reference_is_a_document_or_a_file_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "reference"]) == 0
    assert capsys.readouterr().out == as_markdown()

    assert main(["config", "reference", "--output", "toml"]) == 0
    Path("all.toml").write_text(capsys.readouterr().out)
    assert Path("all.toml").read_text() == as_toml()
    assert main(["config", "check", "--config", "all.toml"]) == 0


def test_the_commands_of_the_document_work(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.toml").write_text("")
    commands = re.findall(r"^\$ scalable-topics (.*?)(?:  +#.*)?$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        assert main(shlex.split(command)) == 0, command
        assert capsys.readouterr().out
