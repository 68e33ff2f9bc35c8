"""README.md says nothing that is not so."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import numba_bs as bs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"]
INSTALL = "python -m pip install . && numba-bs demo"
TEST = "python -m pip install '.[test]' && python -m pytest -n auto"


def code(language, text=README):
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_quick_start_is_two_commands():
    section = README.split("## Quick start")[1].split("\n## ")[0]
    (block,) = code("bash", section)
    assert block.splitlines() == [INSTALL, TEST]


def test_ci_runs_the_two_commands():
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script
    for number in (0, 1):
        assert f'bash -c "${{commands[{number}]}}"' in script


@pytest.mark.parametrize("block", code("python"))
def test_example(block):
    test = doctest.DocTestParser().get_doctest(block, {}, "README", "README.md", 0)
    flags = doctest.NORMALIZE_WHITESPACE
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0
    assert test.examples


def test_example_is_short():
    (block,) = code("python")
    assert len(block.strip().splitlines()) <= 12


def test_what_it_is_takes_ten_lines():
    introduction = README.split("## Quick start")[0].strip().splitlines()
    assert len([line for line in introduction if line.strip()]) <= 12


def operations():
    """Return the names that the table of operations mentions in its first column."""
    section = README.split("## Operations")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return re.findall(r"`([a-zA-Z_][\w.]*)(?=[`(])", " ".join(rows))


@pytest.mark.parametrize("name", operations())
def test_listed_operation_exists(name):
    found = bs
    for part in name.split("."):
        if not hasattr(found, part):
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
    assert found.__doc__


def test_every_operation_is_listed():
    public = {name for name in vars(bs) if name.endswith("_backward")}
    public |= {name.removesuffix("_backward") for name in public}
    assert public <= set(operations())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document):
    path = ROOT / document
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), f"{document} links to {target}"


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"`([\w.]+/[\w./]+\.(?:py|md))`", text):
        if "rows" not in name:  # the operation that is made up there
            found = [ROOT / name, ROOT / "numba_bs" / name]
            assert any(path.exists() for path in found), name


def test_no_speed_is_typed_by_hand():
    pattern = "<!-- benchmark:begin -->.*<!-- benchmark:end -->"
    assert len(re.findall(pattern, README, re.DOTALL)) == 1
    rest = re.sub(pattern, "", README, flags=re.DOTALL)
    assert not re.findall(r"\d\s*(?:[TG]FLOP|[TG]B/s|x faster|times faster)", rest)


@pytest.mark.parametrize("extra", ["cu12", "cu13"])
def test_extras_for_a_gpu_are_named(extra):
    assert f"'.[{extra}]'" in README
