"""`scalable-topics rehearse` as somebody types it."""

import subprocess
import sys
from pathlib import Path

import pytest

from scalable_topics.cli.main import main


def test_the_built_in_day_shows_a_topic_split_and_merge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert any("split segment 0 into 2 (msgRateIn)" in line for line in lines)
    assert any("(cold)" in line for line in lines)
    assert lines[-1].endswith("1 active segments at the end")


def test_a_file_a_policy_and_consumers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = tmp_path / "load.csv"
    load.write_text("timestamp,value\n" + "2026-01-01 00:00:00,15000\n" * 4)

    policy = '{"maxSegments": 3, "splitCooldownSeconds": "0s"}'
    assert main(["rehearse", "--load", str(load), "--scale", "2", "--policy", policy, "--explain"]) == 0

    output = capsys.readouterr().out
    assert "30,000" in output
    assert "LOAD_SPLIT [0]: msgRateIn 30000 against 10000: acts" in output
    assert output.splitlines()[-1] == "2 changes, epoch 4, 3 active segments at the end"


def test_a_topic_with_day_and_night_is_one_segment_every_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cap on depth is against churn: it does not stop a topic that merges once a night."""
    rows = [f"{hour},{36_000 if 8 <= hour % 24 < 20 else 300}" for hour in range(24 * 20)]
    load = tmp_path / "load.csv"
    load.write_text("\n".join(["timestamp,value", *rows]))

    assert main(["rehearse", "--load", str(load), "--step", "1h"]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "down to 1 active segments on 20 of 20 days"
    assert main(["rehearse", "--load", str(load), "--step", "1h", "--policy", '{"dagDepthWindowSeconds": 0}']) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "down to 1 active segments on 6 of 20 days"


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--policy", "{"], "--policy is not JSON"),
        (["--policy", '{"maxSegment": 3}'], "did you mean maxSegments?"),
        (["--policy", '{"minSegments": 9, "maxSegments": 3}'], "at most maxSegments (3)"),
        (["--scale", "nan"], "--scale nan is not a factor"),
        (["--step", "soon"], "'soon' is not a duration"),
        (["--step", "2d"], "--step 2d leaves nothing"),
        (["--policy", "[" * 5_000], "--policy is not JSON"),
        (["--step", "0s"], "--step must be longer than nothing"),
        (["--segments", "0"], "a topic cannot have 0 segments"),
        (["--consumers", "-1"], "cannot have -1 connected"),
        (["--load", "/does/not/exist"], "cannot read it"),
    ],
)
def test_bad_input_is_refused_with_a_way_out(
    arguments: list[str], story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rehearse", *arguments]) == 2
    assert story in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "story"),
    [
        ("", "it holds no rows"),
        ("timestamp,value\n", "it holds no rows"),
        ("timestamp,value\na,1\nb,x\n", "line 3: there is no number under 'value'"),
        ("when,what\na,1\n", "line 2: there is no number under 'value'"),
        ("timestamp,value\na,-1\n", "line 2: -1.0 is not a rate"),
        ("timestamp,value\na,inf\n", "line 2: inf is not a rate"),
    ],
)
def test_bad_files_are_refused_by_line(
    tmp_path: Path, content: str, story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.csv"
    path.write_text(content)

    assert main(["rehearse", "--load", str(path)]) == 2
    assert story in capsys.readouterr().err


def test_help_and_a_closed_pipe() -> None:
    command = [sys.executable, "-m", "scalable_topics"]

    told = subprocess.run([*command, "rehearse", "--help"], capture_output=True, text=True, check=True)
    assert "--policy" in told.stdout
    nothing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert nothing.returncode == 2
    assert "COMMAND" in nothing.stderr
    with subprocess.Popen(
        [*command, "rehearse", "--explain"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
