"""The examples run, each in a process of its own, and say what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.fixture
def output(example):
    """Return what an example prints; a warning or an error fails."""
    if "import torch" in example.read_text():
        pytest.importorskip("torch")
    path = os.pathsep.join(filter(None, [str(FOLDER.parent), os.getenv("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example, output):
    assert output
    if example.stem == "torch_layer":
        assert "gradcheck in float64: True" in output
        first, last = output.split(": ")[-1].split(" -> ")
        assert float(last) < 1e-3 * float(first)
