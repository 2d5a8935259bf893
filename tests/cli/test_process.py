"""The command line as a process: pipes that close, interrupts, what starting costs, and every command once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nobsp.cli import main, options
from nobsp.cli.options import Console
from tests.processes import end_of, run_process, run_python, started, wait_until

NOBSP = [sys.executable, "-m", "nobsp"]
HOUSE = ["--model", "house.pt2", "--data", "houses.csv", "--target", "price"]

SLOW = '''
"""A network that says when it is run, and then takes its time."""
import time
from pathlib import Path
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 8:
            Path("running").touch()
            time.sleep(60)
        return self.head(x)
'''


def run(words: Sequence[object], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_process([*NOBSP, *words], cwd=cwd, check=False)


def test_help_is_shown_when_nothing_is_asked(tmp_path: Path) -> None:
    done = run([], cwd=tmp_path)
    assert done.returncode == 0
    for word in ("explain", "cam", "audit", "demo", "version", "exit codes"):
        assert word in done.stdout.lower()
    assert done.stderr == ""


def test_version_costs_no_torch(tmp_path: Path) -> None:
    program = "import sys; from nobsp.cli import main; main(['version']); sys.exit('torch' in sys.modules)"
    done = run_python(program, cwd=tmp_path)
    assert "torch" in done.stdout


@pytest.mark.parametrize("words", [["version"], ["--help"]])
def test_a_reader_who_has_gone_is_not_complained_about(words: list[str], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = run_process([*NOBSP, *words], stdout=write, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = run_process([*NOBSP, "version"], stdout=full, check=False)
    assert (done.returncode, done.stderr) == (1, "nobsp: no space left on device.\n")


def test_an_unknown_command_is_one_line_with_what_is_close(tmp_path: Path) -> None:
    done = run(["explian"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'explain'?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_explain_runs_and_says_results_on_stdout_alone(home: Path, tmp_path: Path) -> None:
    done = run(
        ["explain", *HOUSE, "--interactions", "0", "--out", tmp_path / "out", "--json"], cwd=home
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["files"]) == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert done.stderr.splitlines()[0] == "reading houses.csv"


@pytest.mark.parametrize("command", ["cam", "audit"])
def test_commands_on_images_run(command: str, gallery: Path, tmp_path: Path) -> None:
    words = [
        "--model",
        "net.pt2",
        "--images",
        "images",
        "--calibrate",
        "more",
        "--channels",
        "1",
        "--out",
        tmp_path / "out",
    ]
    done = run([command, *words], cwd=gallery)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").is_file()
    assert done.stdout.splitlines()[-1].startswith(f"Wrote {tmp_path}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_half_written(
    number: int, code: int, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    words = [
        "explain",
        "--model",
        "slow:Slow",
        "--data",
        home / "houses.csv",
        "--target",
        "price",
        "--out",
        "out",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([*NOBSP, *words], cwd=tmp_path, **pipes) as process:
        running = tmp_path / "running"
        wait_until(
            lambda: running.exists() or process.poll() is not None, "the network was run or failed"
        )
        process.send_signal(number)
        said, complained = end_of(process)
    assert (process.returncode, said) == (code, "")
    assert "Traceback" not in complained
    assert {path.name for path in tmp_path.iterdir()} <= {"slow.py", "running", "__pycache__"}


@pytest.mark.parametrize(
    ("terminal", "quiet", "drawn"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_progress_bars_are_for_terminals(
    terminal: bool, quiet: bool, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert Console(quiet=quiet).progress is drawn


def test_the_demo_without_the_report_advises_no_option_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)

    code = main(["demo", "--out", str(tmp_path / "demo")])

    words = capsys.readouterr().err
    assert code != 0
    assert "nobsp[report]" in words
    assert "--no-report" not in words
    assert not (tmp_path / "demo").exists()
