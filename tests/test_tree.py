"""The rules that hold for the source tree as a whole."""

import ast
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import numba_bs as bs
from numba_bs import files, gallery, patterns, reference

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "numba_bs"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# Who may import whom when loaded: what stands in an earlier line. "*" is any module of
# that folder. Files _family.py that are not named here are families.
LAYERS = (
    ("checks", "dtypes", "plan", "strided", "_explain", "_plot"),
    ("arrays", "layout"),
    ("bsr", "choose.*", "leading", "patterns"),
    ("reference.*", "cuda.*"),
    ("families",),
    ("files", "gallery", "environment"),
    ("demo",),
    ("cli",),
    ("__main__", "__init__"),
)
KERNELS = [
    name
    for name in MODULES
    if re.fullmatch(r"cuda\.(?!tiles_)\w+_(simt|mma|wgmma)", name)
]


class Import:
    """One import statement: the modules it may load, and where it stands."""

    def __init__(self, module, node, lazy):
        self.lazy = lazy  # inside a function: not when the module is loaded
        if isinstance(node, ast.Import):
            self.names = [alias.name for alias in node.names]
            return
        base = node.module or ""
        if node.level:  # relative
            folder = ["numba_bs", *module.split(".")[:-1]]
            folder = folder[: len(folder) - node.level + 1]
            base = ".".join([*folder, base]).rstrip(".")
        self.names = [base] + [f"{base}.{alias.name}" for alias in node.names]

    def loads(self, module):
        """Whether it names this module or something in it."""
        return any(f"{name}.".startswith(f"{module}.") for name in self.names)


def imports(module):
    """Return the imports of a module, except those for type checkers."""
    tree = ast.parse(MODULES[module].read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, functions)
        for inner in ast.walk(node)
    }
    return [
        Import(module, node, id(node) in lazy)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


def layer(module):
    """Return the layer of a module of the package, counted from the ground."""
    folder = module.partition(".")[0]
    for number, members in enumerate(LAYERS):
        if module in members or f"{folder}.*" in members:
            return number
    assert re.fullmatch(r"_[a-z]\w*", module), f"{module}: which of LAYERS?"
    return LAYERS.index(("families",))


def imported_modules(module, *, lazy):
    """Return the modules of the package that a module imports."""
    found = set()
    for each in imports(module):
        if each.lazy and not lazy:
            continue
        for name in each.names:
            inside = name.removeprefix("numba_bs.")
            if inside in MODULES:
                found.add(inside)
            elif f"{inside}.__init__" in MODULES:
                found.add(f"{inside}.__init__")
    return found - {module}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    for other in imported_modules(module, lazy=False):
        same_folder = "." in module and module.split(".")[0] == other.split(".")[0]
        same_layer = layer(other) == layer(module)
        families = same_layer and layer(module) == LAYERS.index(("families",))
        assert layer(other) < layer(module) or same_folder or families, (
            f"{module} imports {other}, which stands above or beside it"
        )


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("cuda.")])
def test_cuda_knows_only_plans_arrays_and_types(module):
    allowed = {"arrays", "dtypes", "plan", "strided"}
    for other in imported_modules(module, lazy=True):
        assert other in allowed or other.startswith("cuda."), f"{module}: {other}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("reference.")])
def test_reference_knows_no_device(module):
    for each in imports(module):
        for device in ("numba", "cuda", "torch", "cupy", "numba_bs.cuda"):
            assert not each.loads(device), f"{module} imports {device}"


def test_plans_are_numpy_and_scipy():
    for each in imports("plan"):
        known = [each.loads(name) for name in ("typing", "numpy", "scipy")]
        assert any(known), each.names


@pytest.mark.parametrize("module", MODULES)
def test_numba_and_llvmlite_have_one_door(module):
    machinery = {"cuda.compiler", "cuda.launch", "cuda.ptx", "cuda.simulator"}
    for each in imports(module):
        if "numba.cuda" in each.names:
            takes_cuda = not any(name.startswith("numba.cuda.") for name in each.names)
            assert not takes_cuda or module == "cuda.compiler", (
                f"{module}: take cuda from cuda/compiler.py"
            )
        if each.loads("numba"):
            assert module in machinery, f"{module} imports {each.names}"
        if each.loads("llvmlite"):
            assert module == "cuda.ptx", f"{module} imports {each.names}"


@pytest.mark.parametrize("module", KERNELS)
def test_kernels_do_not_validate(module):
    source = MODULES[module].read_text()
    assert "checks" not in imported_modules(module, lazy=True)
    assert not re.findall(r"raise (ValueError|TypeError)", source)


@pytest.mark.parametrize("module", KERNELS)
def test_a_kernel_file_says_what_its_grid_is(module):
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text()))
    for line in ("grid", "threads", "shared", "reads"):
        assert re.search(rf"^ *{line} ", docstring, re.MULTILINE), f"{module}: {line}"


def test_there_are_kernels():
    assert KERNELS


def test_every_folder_is_a_package():
    # One without __init__.py would be left out of what is installed.
    for path in MODULES.values():
        assert (path.parent / "__init__.py").exists(), path.parent


# ------------------------------------------------------------------------- public


def operations():
    """Return the names of the public operations and their backwards."""
    return [
        name
        for name, value in vars(bs).items()
        if isinstance(value, types.FunctionType)
        and value.__module__.startswith("numba_bs._")
        and name not in ("explain",)
    ]


def test_every_operation_has_a_reference_and_a_backward():
    names = operations()
    assert {"matmul", "matmul_backward", "sddmm", "sddmm_backward"} <= set(names)
    for name in names:
        assert hasattr(reference, name), name
        assert name.endswith("_backward") or f"{name}_backward" in names, name


@pytest.mark.parametrize("name", operations())
def test_a_reference_has_the_signature_of_its_operation(name):
    public = inspect.signature(getattr(bs, name))
    meaning = inspect.signature(getattr(reference, name))
    assert list(public.parameters) == list(meaning.parameters)
    for parameter, twin in zip(
        public.parameters.values(), meaning.parameters.values(), strict=True
    ):
        assert (parameter.kind, parameter.default) == (twin.kind, twin.default)


def public_objects():
    """Yield every public function, class and method with its name."""
    for module in (bs, patterns, reference, files, gallery):
        for name, value in vars(module).items():
            if name.startswith("_") or not callable(value):
                continue
            if not getattr(value, "__module__", "").startswith("numba_bs"):
                continue
            yield f"{module.__name__}.{name}", value
            if not inspect.isclass(value):
                continue
            for attribute, member in vars(value).items():
                member = getattr(member, "__func__", member)
                if isinstance(member, property):
                    member = member.fget
                if isinstance(member, types.FunctionType) and attribute[0] != "_":
                    yield f"{module.__name__}.{name}.{attribute}", member


@pytest.mark.parametrize(
    "value", [pytest.param(value, id=name) for name, value in public_objects()]
)
def test_what_is_public_has_a_docstring(value):
    summary = (value.__doc__ or "").strip().splitlines()[:1]
    assert summary
    assert summary[0]


# ------------------------------------------------------------------------- import

TIMED_IMPORT = """
import sys, time
start = time.perf_counter()
import numba_bs
seconds = time.perf_counter() - start
heavy = {"numba", "llvmlite", "cuda", "torch", "cupy", "matplotlib"}
print(seconds, *sorted(heavy & set(sys.modules)))
"""


def test_importing_is_quick_and_loads_nothing_heavy():
    seconds = []
    for _ in range(3):  # the quickest: the machine may be busy
        done = subprocess.run(
            [sys.executable, "-c", TIMED_IMPORT],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
        taken, *heavy = done.stdout.split()
        assert heavy == []
        seconds.append(float(taken))
    assert min(seconds) < 1


# --------------------------------------------------------------------------- text

TEXT = {".py", ".md", ".cfg", ".toml", ".json", ".txt", ""}
GENERATED = ("build", "dist", "__pycache__")


def texts():
    """Return the text files of the checkout."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        ours = parts[0] == ".ci" or not any(
            part[0] == "." or part in GENERATED or part.endswith(".egg-info")
            for part in parts
        )
        if path.is_file() and path.suffix in TEXT and ours:
            found.append(path)
    return found


def test_no_path_of_somebodys_machine():
    # In two pieces, or this file would hold what it forbids.
    local = re.compile(r"(?<![\w.~])/" + r"(work|root|tmp|home|Users|mnt|opt)/\w")
    for path in texts():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not local.search(line), f"{path.relative_to(ROOT)}:{number}: {line}"
