"""Commands end by their status and a sentence: unknown devices, closed pipes, Ctrl-C, ASCII."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def command(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("rangeops", "verify", "mlp", "--device", "tpu"), "device got 'tpu', expected 'cuda'"),
        (("bench", "--plot", "no/such/folder/x.png"), "--plot: got no/such/folder/x.png, expected"),
        (("bench", "--plot", "steps.doc"), "--plot: got steps.doc, expected a file in a folder"),
    ],
)
def test_what_is_refused_is_one_line_and_status_two(words, sentence):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    out, error = (done := command(*words)).communicate(timeout=60)
    assert done.returncode == 2 and not out
    assert sentence in error.decode() and error.count(b"\n") == 1


def test_a_reader_that_goes_away_ends_the_command_without_a_word():
    with command("plan", "gpt2", PYTHONUNBUFFERED="1") as done:
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 141


def test_a_terminal_of_plain_ascii_gets_a_drawing_too():
    out, error = (done := command("plan", "mlp", PYTHONIOENCODING="ascii")).communicate(timeout=60)
    assert done.returncode == 0 and not error and b"W_FC_WEIGHT" in out


def test_ctrl_c_shows_the_rows_that_were_measured():
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    script = (
        "import signal, sys, time; from bench import __main__ as m; from bench.topic import Topic\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & ignores it
        "def rows(quick):\n"
        "    yield {'topic': 'step-cpu', 'case': 'one', 'subject': 'ours', 'ms': 1.5}\n"
        "    print('measured', file=sys.stderr, flush=True); time.sleep(60)\n"
        "m.TOPICS = {'steps': Topic('steps', rows, {}, gpus=0)}\n"
        "sys.argv = ['bench', '--only', 'steps']; sys.exit(m.run(m.main))\n"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert "measured" in iter(done.stderr.readline, "").__next__()
    time.sleep(0.2)
    done.send_signal(signal.SIGINT)
    out, _ = done.communicate(timeout=60)
    assert done.returncode == 130 and "| one   | ours | 1.5" in out
