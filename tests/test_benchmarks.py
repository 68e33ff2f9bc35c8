"""The benchmarks' own code, at tiny sizes and with fakes of what is not here."""

import ctypes
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import (
    bench_matmul,
    cases,
    drawings,
    harness,
    peers,
    problems,
    report,
    summary,
)
from benchmarks.cases import Case
from numba_bs import Layout, dtypes

SMALL = Case("fp32", 64, 48, 20, (8, 4), 0.3)


@pytest.fixture
def problem():
    return problems.Problem(SMALL, harness.HostMachine())


def right_result(problem, op, peer=None):
    prepared = (peer or peers.NumbaBsHost()).prepare(op, problem)
    return prepared.output(prepared.call())


class FakePeer(peers.Peer):
    """A peer that makes what the given function makes."""

    gpu = False

    def __init__(self, name, call):
        self.name, self._make = name, call

    def prepare(self, op, problem):
        return peers.Prepared(lambda: self._make(op, problem))


# ------------------------------------------------------------------------ cases


def test_case_names_differ():
    for name, points in cases.SETS.items():
        names = [case.name for case in points]
        assert len(set(names)) == len(names), name


def test_all_are_the_points_of_every_set_for_a_gpu():
    left_out = {"all", "quick", "cpu", "cpu-quick"}
    every = {case for name in cases.SETS.keys() - left_out for case in cases.SETS[name]}
    assert set(cases.SETS["all"]) == every
    assert cases.SETS["small"]


def test_the_precision_is_part_of_a_name():
    name = SMALL.name
    assert SMALL._replace(precision="tf32").name == f"{name}/tf32"
    assert name.endswith("uniform")  # as files have it that know no precision
    found = {(case.dtype, case.precision) for case in cases.SETS["precisions"]}
    assert found == {("fp32", "tf32"), ("fp32", "tf32x3"), ("fp64", None)}


def test_a_scale_free_layout_has_a_uniform_one_of_as_many_blocks():
    points = cases.SETS["scale-free"]
    assert {case.blocksize for case in points} == {(32, 32), (128, 128)}
    for case, twin in zip(points[::2], points[1::2], strict=True):
        longest = []
        for each, pattern in ((case, "power-law"), (twin, "uniform")):
            assert each.pattern == pattern
            longest.append(np.diff(cases.make_layout(each).indptr).max())
        assert case[:5] == twin[:5]
        assert cases.make_layout(case).blocks == cases.make_layout(twin).blocks
        assert longest[0] > 1.3 * longest[1]


def test_an_odd_width_has_an_even_one_beside_it():
    points = cases.SETS["widths"]
    odd = [case for case in points if case.N == 8191]
    assert {(c.dtype, c.blocksize[0]) for c in odd} == {
        (dtype, R) for dtype in ("bf16", "fp32") for R in (16, 32, 64, 128)
    }
    assert {case._replace(N=8192) for case in odd} <= set(points)


@pytest.mark.parametrize("pattern", cases.PATTERNS)
def test_layouts_have_about_the_density_asked_for(pattern):
    case = Case("fp32", 1024, 1024, 1, (16, 16), 0.1, pattern)
    layout = cases.make_layout(case)
    assert layout.shape == (1024, 1024)
    assert 0.09 < layout.density < 0.12
    assert layout == cases.make_layout(case)


def test_patterns_are_what_they_are_called():
    def lengths(pattern):
        case = Case("fp32", 1024, 1024, 1, (16, 16), 0.1, pattern)
        return np.diff(cases.make_layout(case).indptr)

    assert lengths("full-row").max() == 64
    assert lengths("power-law").max() > 2 * np.median(lengths("power-law"))
    assert lengths("banded").max() < 2 * lengths("banded").min()


# ----------------------------------------------------------------------- checks


@pytest.mark.parametrize("op", problems.OPS)
@pytest.mark.parametrize(
    "case",
    [
        SMALL,
        Case("fp64", 33, 36, 8, (3, 3), 0.3),
        Case("bf16", 64, 64, 33, (16, 16), 0.2, "full-row"),
        Case("fp16", 64, 64, 1, (16, 16), 0.2),
        Case("fp32", 64, 64, 4, (16, 16), 0.01),
    ],
    ids=lambda case: case.name,
)
def test_right_results_pass(case, op):
    problem = problems.Problem(case, harness.HostMachine())
    found = problems.check(problem, op, right_result(problem, op))
    assert found.within(1.0), found


@pytest.mark.parametrize(
    ("peer", "ops"),
    [(peers.Numpy(), problems.OPS), (peers.Scipy(), ("forward", "grad_x"))],
    ids=["NumPy", "SciPy"],
)
def test_results_of_host_peers_pass(problem, peer, ops):
    for op in ops:
        result = right_result(problem, op, peer)
        assert problems.check(problem, op, result).within(1.0), op


@pytest.mark.parametrize("op", problems.OPS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda result: result * np.float32(1.001),
        lambda result: result[::-1],
        lambda result: np.where(np.arange(len(result)) == 0, 0, result.T).T,
        lambda result: np.where(np.arange(len(result)) == 9, np.nan, result.T).T,
    ],
    ids=["scaled", "reversed", "unwritten row", "nan"],
)
def test_wrong_results_do_not_pass(problem, op, spoil):
    result = spoil(right_result(problem, op))
    assert not problems.check(problem, op, result).within(peers.Peer.slack)


def rounded(x, bits):
    """Return float32 rounded to that many bits."""
    x = np.asarray(x, np.float32)
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(fraction * 2**bits), exponent - bits).astype(np.float32)


def product_of_parts(problem, op, precision):
    """Return the result of an operation whose operands were rounded beforehand."""
    operands = {
        "forward": (problem.dense(), problem.x),
        "grad_x": (problem.dense().T, problem.grad_y),
        "grad_w": (problem.grad_y, problem.x.T),
    }[op]
    bits = {"bf16": 8, None: 24}.get(precision, 11)
    high = [rounded(operand, bits) for operand in operands]
    result = high[0] @ high[1]
    if precision == "tf32x3":
        low = [rounded(o - h, bits) for o, h in zip(operands, high, strict=True)]
        result = result + high[0] @ low[1] + low[0] @ high[1]
    return problem.stored(result) if op == "grad_w" else result


# So long that the bound of its sums would let operands of 11 bits pass.
LONG = Case("fp32", 32, 3072, 2560, (16, 16), 0.8)


@pytest.fixture(scope="module")
def long_problem():
    return problems.Problem(LONG, harness.HostMachine())


@pytest.mark.parametrize("op", problems.OPS)
def test_precisions_are_told_apart(long_problem, op):
    # What was asked for, and which products of rounded operands do for it.
    served = {
        None: {None, "tf32x3"},
        "tf32x3": {None, "tf32x3"},
        "tf32": {None, "tf32x3", "tf32"},
    }
    for made in (None, "tf32x3", "tf32", "bf16"):
        result = product_of_parts(long_problem, op, made)
        for asked, fitting in served.items():
            rounding = problems.ROUNDING[asked]
            found = problems.check(long_problem, op, result, rounding)
            assert found.within(1.0) == (made in fitting), (asked, made, found)
            assert found.within(1.0) == (found.share <= 1.0)


def test_the_limit_of_an_error_has_no_slack():
    found = problems.Check(error=3e-4, excess=0.1, complete=True, limit=1e-4)
    assert not found.within(8.0)
    assert found.share == pytest.approx(3.0)
    assert found._replace(error=1e-5).within(8.0)


def test_two_parts_lose_what_is_said(rng):
    exact = rng.standard_normal(10_000).astype(np.float32)
    high = rounded(exact, 11)
    lost = np.abs(exact - high) / np.abs(exact)
    assert lost.max() <= problems.ROUNDING["tf32"].operand
    assert lost.max() > dtypes.unit_roundoff(np.dtype(np.float16)) / 2
    rest = np.abs(exact - high - rounded(exact - high, 11)) / np.abs(exact)
    assert rest.max() <= problems.ROUNDING["tf32x3"].operand


def test_results_of_a_wrong_shape_are_refused(problem):
    with pytest.raises(ValueError, match="were due"):
        problems.check(problem, "forward", np.zeros((64, 19), np.float32))


def test_dense_and_stored_blocks_are_inverse(problem):
    dense = problem.dense()
    assert dense.shape == (64, 48)
    assert np.array_equal(problem.stored(dense), problem.values)
    transposed = problem.transposed_values
    assert np.array_equal(problem.layout.T.mask(), problem.layout.mask().T)
    exact = dense.reshape(8, 8, 12, 4).swapaxes(1, 2)
    rows, cols = problem.layout.T.coordinates()
    assert np.array_equal(transposed, exact[cols, rows].swapaxes(1, 2))


# ----------------------------------------------------------------------- timing


class FakeCuda:
    """Enough of torch.cuda to count what GpuMachine asks of it."""

    def __init__(self, early=False):
        self.early, self.now, self.log = early, 0.0, []

    def set_device(self, device):
        pass

    def get_device_properties(self, device):
        return SimpleNamespace(
            name="Fake", major=9, minor=0, multi_processor_count=2, L2_cache_size=64
        )

    def synchronize(self):
        self.log.append("synchronise")

    def _sleep(self, cycles):
        self.log.append("sleep")
        assert cycles > 0

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        event = SimpleNamespace(time=None)
        event.record = lambda: setattr(event, "time", self.now)
        event.query = lambda: self.early
        event.elapsed_time = lambda end: end.time - event.time
        return event


def fake_torch(early=False):
    cuda = FakeCuda(early)
    flush = SimpleNamespace(zero_=lambda: cuda.log.append("flush"))
    matmul = SimpleNamespace(allow_tf32=None)
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul))
    empty = lambda *shape, **kind: flush  # noqa: E731
    return SimpleNamespace(cuda=cuda, empty=empty, uint8=None, backends=backends)


@pytest.mark.parametrize("early", [False, True])
def test_gpu_time_is_between_events_of_a_full_queue(early):
    torch = fake_torch(early)
    machine = harness.GpuMachine(torch)
    assert torch.backends.cuda.matmul.allow_tf32 is False

    def call():
        torch.cuda.log.append("call")
        torch.cuda.now += 2.0  # ms

    timing = machine.measure(call, 0.001)
    assert timing.kernel == pytest.approx((0.002, 0.002, 0.002))
    assert timing.held is not early
    log = torch.cuda.log
    # The last sample: cold cache, busy queue, call, wait.
    assert log[-4:] == ["flush", "sleep", "call", "synchronise"]
    assert log.count("call") == 2 + 2 * timing.repeats


def test_host_times_are_positive():
    timing = harness.HostMachine().measure(lambda: sum(range(100)), 0.001)
    assert 0 < timing.kernel.low <= timing.kernel.median <= timing.kernel.high
    assert 3 <= timing.repeats <= 100


def test_machine_without_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    assert not harness.find_machine("auto").is_gpu
    with pytest.raises(RuntimeError, match="not installed"):
        harness.find_machine("gpu")
    absent = SimpleNamespace(is_available=lambda: False)
    blind = SimpleNamespace(cuda=absent, __version__="0")
    monkeypatch.setitem(sys.modules, "torch", blind)
    assert not harness.find_machine("auto").is_gpu
    with pytest.raises(RuntimeError, match="sees no CUDA GPU"):
        harness.find_machine("gpu")


# ------------------------------------------------------------------------ peers


@pytest.mark.parametrize("n", [8192, 1024, 48, 16])
def test_configurations_of_torch_divide_n(n):
    configs = peers.torch_configs(n)
    assert 0 < len(configs) <= 24
    assert len({tuple(c.items()) for c in configs}) == len(configs)
    for config in configs:
        tile = n // config["SPLIT_N"]
        assert tile * config["SPLIT_N"] == n
        assert tile >= 16
        assert tile & (tile - 1) == 0


def test_no_tile_divides_an_odd_n():
    assert peers.torch_configs(8191) == []


@pytest.mark.parametrize("precision", [None, "tf32", "tf32x3"])
def test_numba_bs_is_asked_for_the_precision(monkeypatch, precision):
    asked = []

    def take_down(*operands, out, precision):
        asked.append(precision)

    for name in ("matmul", "sddmm"):
        monkeypatch.setattr(peers.bs, name, take_down)
    case = SMALL._replace(precision=precision)
    problem = problems.Problem(case, harness.HostMachine())
    for op in problems.OPS:
        peers.NumbaBsHost().prepare(op, problem).call()
    assert asked == [precision] * 3
    assert peers.NumbaBs().rounding(case) == problems.ROUNDING[precision]


def test_tf32_is_ranked_where_it_was_asked_for():
    tf32 = SMALL._replace(precision="tf32")
    exact = [SMALL, SMALL._replace(precision="tf32x3")]
    for peer in (peers.BlksprsTF32(), peers.TorchTunedTF32()):
        assert peer.comparable(tf32)
        assert not any(peer.comparable(case) for case in exact)
    for case in (tf32, *exact):
        assert peers.NumbaBs().comparable(case)
        assert peers.TorchTuned().comparable(case)
        assert not peers.DenseTF32().comparable(case)


class FakeKernel:
    """Takes down what it is launched with."""

    def __init__(self):
        self.launched = []

    def __getitem__(self, grid):
        return lambda *given, **named: self.launched.append((grid, given, named))


def test_kernels_of_torch_multiply_in_tf32_for_a_while():
    kernels = FakeKernel(), FakeKernel()
    module = SimpleNamespace(tl=SimpleNamespace(float32="float32"))
    module._bsr_strided_addmm_kernel, module._sampled_addmm_kernel = kernels

    def launch():
        for name in ("_bsr_strided_addmm_kernel", "_sampled_addmm_kernel"):
            kernel = getattr(module, name)
            kernel[1, 2](7, acc_dtype="float64", allow_tf32=False, num_warps=4)

    def fail():
        with peers.tf32_kernels(module):
            launch()
            raise RuntimeError("out of resource")

    with pytest.raises(RuntimeError, match="out of resource"):
        fail()
    launch()  # as torch means it, although the first ended badly
    forced = {"acc_dtype": "float32", "allow_tf32": True, "num_warps": 4}
    meant = {"acc_dtype": "float64", "allow_tf32": False, "num_warps": 4}
    for kernel in kernels:
        assert kernel.launched == [((1, 2), (7,), forced), ((1, 2), (7,), meant)]


def test_tuned_parameters_are_those_of_what_is_computed(monkeypatch):
    names = []

    def parameters(peer, machine, name, N, call):
        names.append(name)
        return {}, ""

    ops = SimpleNamespace(bsr_dense_addmm=None)
    monkeypatch.setitem(sys.modules, "torch.sparse._triton_ops", ops)
    monkeypatch.setattr(peers.TorchTuned, "_parameters", parameters)
    values = SimpleNamespace(shape=(9, 16, 16))
    bsr = SimpleNamespace(values=lambda: values, shape=(64, 48))
    dense = SimpleNamespace(new_empty=lambda shape: None, shape=(48, 16))
    case = Case("fp32", 64, 48, 16, (16, 16), 0.3)
    for precision in (None, "tf32", "tf32x3"):
        problem = SimpleNamespace(
            case=case._replace(precision=precision), machine=None, grad_y=None
        )
        peers.TorchTuned()._product(problem, bsr, dense)
        peers.TorchTunedTF32()._product(problem, bsr, dense)
    assert names == [f"{case.name}/64x48", f"{case.name}/64x48/tf32"] * 3


class FakeSweep:
    """A machine on which a call takes as long as it says."""

    def __init__(self):
        self.tried = []

    def call(self, meta):
        self.tried.append(meta["num_stages"])
        if meta["num_stages"] == 4:
            raise RuntimeError("out of resource: shared memory")
        self.took = {3: 0.02, 2: 0.01}[meta["num_stages"]]

    def quick(self, call, repeats):
        call()
        return self.took

    def synchronise(self):
        pass


def test_sweep_takes_the_fastest_and_passes_over_failures():
    machine = FakeSweep()
    configs = [{"num_stages": stages} for stages in (3, 4, 2)]
    best = peers.sweep(machine, machine.call, configs, 10.0)
    assert best == {"num_stages": 2, "ms": 10.0, "tried": 2}
    machine.tried.clear()
    assert peers.sweep(machine, machine.call, configs, 1e-9)["num_stages"] == 3
    assert 2 not in machine.tried
    with pytest.raises(peers.Unserved, match="shared memory"):
        peers.sweep(machine, machine.call, configs[1:2], 10.0)


def test_tuned_parameters_are_kept(tmp_path):
    machine, path = FakeSweep(), tmp_path / "tuned.json"
    machine.name = "Fake"

    def call(meta):
        machine.took = 1 / (meta["num_warps"] * meta["num_stages"])

    for _ in range(2):
        peer = peers.TorchTuned(path)
        meta, note = peer._parameters(machine, "case", 128, call)
        assert meta["num_warps"] == 8
        assert meta["num_stages"] == 4
        assert note.endswith("best of 24")
        call = None  # the second time nothing is called
    assert "case" in json.loads(path.read_text())["Fake"]


class FakeCusparse:
    """Takes every call down; one of them may fail."""

    def __init__(self, failing=None):
        self.calls, self.failing = [], failing

    def __getattr__(self, name):
        def function(*args):
            if name == "cusparseGetErrorString":
                return b"not supported"
            plain = [getattr(a, "value", a) for a in args]
            self.calls.append((name, plain))
            return 10 if name == self.failing else 0

        self.__dict__[name] = function
        return function


class FakeTensor:
    """A NumPy array that answers what CuSparse asks of a tensor."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self, axis):
        return self.array.strides[axis] // self.array.itemsize


def test_cusparse_descriptors():
    fake = FakeCusparse()
    library = peers.CuSparse(fake)
    layout = Layout([0, 1, 3], [1, 0, 1], (8, 6), (4, 3))
    parts = [FakeTensor(np.zeros(3)) for _ in range(3)]
    library.bsr(layout, *parts, 0)
    name, args = fake.calls[-1]
    assert name == "cusparseCreateBsr"
    pointers = [part.data_ptr() for part in parts]
    assert args[1:] == [2, 2, 3, 4, 3, *pointers, 2, 2, 0, 0, 2]
    x = FakeTensor(np.zeros((6, 5)))
    library.dense(x, 1)
    assert fake.calls[-1][1][1:] == [6, 5, 5, x.data_ptr(), 1, 2]
    x_t = FakeTensor(x.array.T)  # the same memory, by columns
    library.dense(x_t, 1)
    assert fake.calls[-1][1][1:] == [5, 6, 5, x.data_ptr(), 1, 1]


def test_cusparse_refusals_are_reasons():
    library = peers.CuSparse(FakeCusparse(failing="cusparseSpMM"))
    with pytest.raises(peers.Unserved, match="status 10, not supported"):
        library("cusparseSpMM", library.handle)


def test_cuda_types():
    assert peers._cuda_types("bf16") == (14, 0, ctypes.c_float)
    assert peers._cuda_types("fp64") == (1, 1, ctypes.c_double)


@pytest.mark.parametrize("op", problems.OPS)
def test_torch_peers_on_cpu_tensors(op):
    torch = pytest.importorskip("torch")
    if op == "grad_w" and torch.cuda.is_available():
        pytest.skip("with a GPU torch samples by Triton alone, which wants GPU tensors")
    machine = harness.GpuMachine(fake_torch())
    machine.torch, machine.device = torch, "cpu"
    case = Case("fp32", 64, 48, 16, (16, 16), 0.3)
    problem = problems.Problem(case, machine)
    for peer in (peers.Dense(), peers.Torch()):
        try:
            prepared = peer.prepare(op, problem)
        except peers.Unserved:
            continue
        result = prepared.output(prepared.call())
        assert problems.check(problem, op, result).within(1.0)
        if prepared.refresh is not None:
            problem.values.mul_(2)
            prepared.refresh()
            assert torch.equal(prepared.output(prepared.call()), 2 * result), (
                "a refreshed copy follows the values"
            )
            problem.values.div_(2)
            prepared.refresh()


# ---------------------------------------------------------------------- running


def run(tmp_path, *options):
    common = ["--device", "cpu", "--quick", "--each", "0.001", "--out", str(tmp_path)]
    code = bench_matmul.main([*common, *options])
    files = sorted(tmp_path.glob("matmul_*.json"))
    return code, [json.loads(path.read_text()) for path in files]


def test_run_on_the_host(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(harness, "commit", lambda: "abc")
    only = ("--only", "fp64")
    code, (content,) = run(tmp_path, *only)
    assert code == 0
    header = content["header"]
    assert content["wanted"] == {"cpu-quick": dict.fromkeys(problems.OPS, 1)}
    assert [path.name[:11] for path in tmp_path.iterdir()] == ["matmul_cpu_"]
    assert header["gpu"] is None
    assert header["commit"] == "abc"
    assert header["inputs"] == "standard normal"
    assert {"numpy", "scipy", "numba_bs"} <= set(header["versions"])
    assert content["ceilings"]["copy_gbs"] > 0
    assert [point["op"] for point in content["points"]] == list(problems.OPS)
    for point in content["points"]:
        assert point["complete"]
        ours = point["peers"]["numba_bs"]
        assert ours["passed"]
        assert ours["tflops"] > 0
        assert 0 < ours["error"] < 1e-14
        assert point["peers"]["dense"]["tflops"] > 0
    assert (
        "no sampled product"
        in content["points"][2]["peers"]["SciPy, one thread"]["reason"]
    )

    # Again: everything is there already.
    code, (same,) = run(tmp_path, *only)
    assert (code, same) == (0, content)
    code, (other,) = run(tmp_path, *only, "--again", "--ops", "forward")
    assert other["points"][1:] == content["points"][1:]
    assert other["points"][0] != content["points"][0]

    # Another commit begins another file.
    monkeypatch.setattr(harness, "commit", lambda: "def")
    code, contents = run(tmp_path, *only, "--ops", "forward")
    assert [c["header"]["commit"] for c in contents] == ["def", "abc"]
    capsys.readouterr()
    code, contents = run(tmp_path, "--seconds", "0")
    assert "Stopped by --seconds after 1 of 9 points" in capsys.readouterr().out
    assert code == 0


def test_list_and_bad_options(tmp_path, capsys):
    assert bench_matmul.main(["--list", "--set", "widths"]) == 0
    assert "bf16/8192x8192x8191/b32/d0.1/uniform" in capsys.readouterr().out
    for device, name in (("cpu", "cpu"), ("gpu", "default")):
        assert bench_matmul.main(["--list", "--device", device]) == 0
        names = [case.name for case in cases.SETS[name]]
        assert capsys.readouterr().out.split() == names
    with pytest.raises(SystemExit):
        bench_matmul.main(["--ops", "sideways"])
    file = tmp_path / "r.json"
    harness.Results(file, {"device": "another", "date": ""}).write()
    options = ["--device", "cpu", "--quick", "--out", str(file)]
    assert bench_matmul.main(options) == 2
    assert "give another name" in capsys.readouterr().out


def test_peers_fail_without_stopping_the_run(problem, tmp_path):
    def fail(op, problem):
        raise RuntimeError("no\n such   kernel")

    def refuse(op, problem):
        raise peers.Unserved("blocks of 128 only")

    def wrong(op, problem):
        return np.zeros((64, 20), np.float32)

    results = harness.Results(tmp_path / "r.json", {})
    others = [FakePeer(f.__name__, f) for f in (fail, refuse, wrong)]
    point = bench_matmul.run_point(
        problem, "forward", [peers.NumbaBsHost(), *others], results, 0.001
    )
    entries = point["peers"]
    assert entries["fail"] == {
        "reason": "RuntimeError: no such kernel",
        "failed": True,
    }
    assert entries["refuse"] == {"reason": "blocks of 128 only"}
    assert not entries["wrong"]["passed"]
    assert summary.summarise(point).best is None
    assert "wrong 0" in bench_matmul._brief(point)
    assert results.find(SMALL.name, "forward") == point


def test_a_lost_gpu_is_not_lost_twice(problem, tmp_path, monkeypatch):
    def poison(op, problem):
        raise RuntimeError("illegal address")

    def broken():
        raise RuntimeError("context is gone")

    results = harness.Results(tmp_path / "r.json", {})
    both = [peers.NumbaBsHost(), FakePeer("poison", poison)]
    with monkeypatch.context() as context:
        context.setattr(problem.machine, "free", broken)
        with pytest.raises(bench_matmul.GpuLost):
            bench_matmul.run_point(problem, "forward", both, results, 0.001)
    # A new process goes on from the file.
    results = harness.Results(tmp_path / "r.json", {})
    point = bench_matmul.run_point(problem, "forward", both, results, 0.001)
    assert point["complete"]
    assert point["peers"]["poison"]["lost"]
    assert point["peers"]["numba_bs"]["passed"]


# ----------------------------------------------------------------------- report


def entry(ms, tflops, **more):
    return {
        "kernel_ms": [ms, ms, ms],
        "tflops": tflops,
        "tflops_called": tflops / 2,
        "comparable": True,
        "passed": True,
        **more,
    }


def made_up():
    """Return results of one case: numba_bs 2 ms a product, dense 4 ms."""
    points = []
    for op in problems.OPS:
        found = {
            "numba_bs": entry(2.0, 20.0, first_ms=1500.0, gbs=100.0),
            "dense": entry(4.0, 10.0, comparable=False),
            "dense TF32": entry(1.0, 40.0, comparable=False),
            "torch": entry(8.0, 5.0),
            "stk": {"reason": "blocks of 128x128 only"},
            "wrong": entry(0.1, 400.0, passed=False),
        }
        if op == "grad_w":
            found["torch tuned"] = {"reason": "see torch"}
        else:
            found["torch tuned"] = entry(4.0, 10.0)
        if op == "grad_x":
            found["torch tuned"]["refresh_ms"] = 2.0
        point = {"case": SMALL.name, "op": op, **SMALL._asdict(), "complete": True}
        point.update(
            blocksize=[8, 4], flops=4e10, bytes=1e7, density=0.25, blocks=9, peers=found
        )
        points.append(point)
    header = {"device": "Fake", "gpu": "Fake", "commit": "abc", "driver": "1"}
    header.update(date="2026-01-02T03:04:05", inputs="standard normal", versions={})
    return {
        "schema": 1,
        "header": header,
        "ceilings": {"copy_gbs": 4000.0},
        "missing": {"blksprs": "blksprs is not installed"},
        "points": points,
    }


def test_summary():
    content = made_up()
    s = summary.summarise(content["points"][0])
    assert (s.ours, s.best, s.best_name) == (20.0, 10.0, "torch tuned")
    assert s.speedup == 2.0
    assert s.dense == 40.0  # with the work of absent blocks: 10 / 0.25
    assert s.share_of_dense == 0.5
    assert s.break_even == pytest.approx(4.0 / 2.0 * 0.25)
    # torch tuned: 4 + (4 + 2 for the copy) + 8 of torch, to 3 x 2.
    points = {point["op"]: point for point in content["points"]}
    assert summary.step(points) == (pytest.approx(3.0), "torch tuned")
    del points["grad_w"]
    assert summary.step(points) is None
    content["points"][0]["peers"]["torch tuned"]["held"] = False
    assert summary.summarise(content["points"][0]).best_name == "torch tuned*"


def test_tf32_is_measured_against_the_dense_product_in_tf32():
    point = made_up()["points"][0]
    for precision, dense in ((None, 40.0), ("tf32x3", 40.0), ("tf32", 160.0)):
        point["precision"] = precision
        s = summary.summarise(point)
        assert s.dense == dense
        assert s.break_even == pytest.approx(20.0 / dense)
        assert summary.kind(point) == (precision or "fp32")


def test_report_rewrites_between_its_comments(tmp_path, capsys):
    content = made_up()
    source = tmp_path / "matmul_fake_2026-01-02.json"
    harness.write_json(source, content)
    assert json.loads(source.read_text()) == content
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    options = [str(source), "--readme", str(readme)]
    assert report.main(options) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n**Fake**, 2026-01-02.\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert "Commit `abc`, driver 1; inputs standard normal." in text
    assert "A of 64 x 48, times 48 x 20:" in text
    assert "| fp32 | 8x4 | 0.25 | 20 (2.00x torch tuned) | 20 (2.00x torch" in text
    assert "| 3.00x torch tuned | 40 (TF32 160) | 0.50 |" in text
    assert "blksprs is not installed" in text
    assert "![" not in text  # no drawings were made
    assert report.main(options) == 0
    assert readme.read_text() == text
    readme.write_text("no comments")
    assert report.main(options) == 2
    assert readme.read_text() == "no comments"
    assert "must stand there once" in capsys.readouterr().out


def test_drawings_stand_above_the_table(tmp_path):
    names = ["matmul_fake_density.png", "matmul_fake_roofline.png"]
    for name in names:
        (tmp_path / name).touch()
    text = report.markdown(made_up(), tmp_path / "matmul_fake.json")
    links = [line for line in text.splitlines() if line.startswith("![Fake: ")]
    assert [line.split("](")[1] for line in links] == [
        f"benchmarks/results/{name})" for name in names
    ]
    assert text.index(links[1]) < text.index("| dtype |")


def results_of(*names, ours=20.0):
    """Return results of sets, the rate of numba_bs given or a function of the case."""
    content = made_up()
    template, content["points"] = content["points"][0], []
    for case in dict.fromkeys(case for name in names for case in cases.SETS[name]):
        layout = cases.make_layout(case)
        rate = ours(case) if callable(ours) else ours
        for op in problems.OPS:
            point = {**template, "case": case.name, "op": op, **case._asdict()}
            point.update(density=layout.density, blocks=layout.blocks)
            point["peers"] = {**template["peers"], "numba_bs": entry(2.0, rate)}
            content["points"].append(point)
    return content


def section(text, heading):
    """Return the rows of the table below a heading, as lists of cells."""
    part = text.split(f"### {heading}\n")[1].split("\n###")[0].split("<details>")[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")]
    return [row.strip("| ").split(" | ") for row in rows[2:]]


def test_what_other_sets_tell_stands_below(tmp_path):
    def rate(case):
        slower = 0.9 if case.pattern == "power-law" else 1.0
        rate = 1000 * round(cases.make_layout(case).density, 4)
        return rate * slower * (0.8 if case.N == 8191 else 1.0)

    names = "widths", "scale-free", "precisions", "small", "densities", "dtypes"
    content = results_of(*names, "default", ours=rate)
    content["points"].reverse()  # the order of sets holds, not that of measuring
    text = report.markdown(content, tmp_path / "x.json")
    main = [line for line in text.split("###")[0].splitlines() if line[:2] == "| "]
    assert len(main) == 2 + len(cases.SETS["default"])
    assert main[2].startswith("| bf16 | 16 | 0.1 | 100 (10.0x torch tuned) |")

    odd = section(text, "Odd sizes")
    assert len(odd) == 8
    assert all(cell.endswith(" (0.80)") for row in odd for cell in row[3:])
    irregular = section(text, "Scale-free layouts")
    assert len(irregular) == len(cases.SETS["scale-free"]) // 2
    assert all(cell.endswith(" (0.90)") for row in irregular for cell in row[-3:])
    precise = section(text, "Other precisions")
    assert [row[0] for row in precise] == ["tf32"] * 3 + ["tf32x3"] * 3 + ["fp64"] * 3
    assert len(section(text, "Small products")) == len(cases.SETS["small"])
    # 16-bit floats of the set dtypes and two narrow products are folded away.
    folded = text.split("<details>")[1].split("</details>")[0]
    shown = [row for row in folded.splitlines() if row.startswith(("| fp16", "| bf16"))]
    assert len(shown) == 2 + 2
    assert len(folded.splitlines()) == 2 + 2 + len(shown) + 1


def test_a_pair_of_which_one_is_missing_is_not_shown(tmp_path):
    content = results_of("default", "widths", "scale-free")
    kept = [p for p in content["points"] if p["pattern"] != "power-law"]
    content["points"] = [p for p in kept if p["N"] != 8192 or p["dtype"] != "fp32"]
    text = report.markdown(content, tmp_path / "x.json")
    assert "Scale-free" not in text
    assert [row[0] for row in section(text, "Odd sizes")] == ["bf16"] * 4


def test_report_says_what_is_incomplete(tmp_path):
    content = made_up()
    assert report.incomplete(content) == []
    content["wanted"] = {"quick": {"forward": 4, "grad_x": 1}}
    for point, case in zip(content["points"][1:], cases.SETS["quick"], strict=False):
        point.update(case=case.name, op="grad_x")
    # Two points are of the set, but only one more was wanted of their operation.
    (part,) = report.incomplete(content)
    assert part == "stopped after 1 of 5 points of set `quick`"
    assert f"incomplete: {part}." in report.markdown(content, tmp_path / "x.json")
    content["wanted"] = {"quick": 5}  # as older files have it
    (part,) = report.incomplete(content)
    assert part == "stopped after 2 of 5 points of set `quick`"
    # Files that do not say what was wanted: the smallest set that has their points.
    del content["wanted"], content["points"][1:]
    content["points"][0]["case"] = cases.SETS["default"][0].name
    (part,) = report.incomplete(content)
    assert part == "stopped after 1 of 48 points of set `default`"


def test_report_without_matplotlib(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    source = tmp_path / "matmul_fake.json"
    harness.write_json(source, made_up())
    assert report.main([str(source), "--print", "--plot"]) == 2
    assert "pip install 'numba-bs[plot]'" in capsys.readouterr().out


def test_newest_result_of_each_gpu(tmp_path):
    for name, gpu, date in [
        ("a_2026-01-02", "A", "2026-01-02T00"),
        ("a_2026-01-02-2", "A", "2026-01-02T09"),
        ("a_2026-01-01", "A", "2026-01-01T00"),
        ("b_2025-01-01", "B", "2025-01-01T00"),
        ("cpu_2026-02-01", None, "2026-02-01T00"),
    ]:
        path = tmp_path / f"matmul_{name}.json"
        harness.write_json(path, {"header": {"gpu": gpu, "date": date}})
    names = [path.stem for path in report.newest(tmp_path)]
    assert names == ["matmul_a_2026-01-02-2", "matmul_b_2025-01-01"]


# --------------------------------------------------------------------- drawings


def test_break_even():
    densities = (0.1, 0.2, 0.4, 0.8)
    # The dense product runs at 100: a tie at 10, 20, 40 and 80.
    density, rate, measured = drawings.break_even(densities, (30, 30, 30, 30), 100)
    assert measured
    assert density == pytest.approx(0.3, rel=1e-2)
    assert rate == 30
    # Half way between 0.2 and 0.4, which is 0.28, the curve is at 30.
    density, rate, measured = drawings.break_even(densities, (50, 40, 20, 10), 100)
    assert measured
    assert 0.28 < density < 0.3
    assert rate == pytest.approx(100 * density, rel=1e-2)
    # It ends above the line: where it would meet it.
    assert drawings.break_even(densities, (30, 50, 70, 90), 100) == (0.9, 90, False)
    assert drawings.break_even(densities, (30, 50, 70, 101), 100) is None
    assert drawings.break_even(densities, (5, 6, 7, 8), 100) is None
    unknown = float("nan")
    assert drawings.break_even(densities, (50, unknown, 20, 10), 100) is None


def test_labels_keep_apart():
    labels = [(36.5, "64"), (20.0, "16"), (36.1, "128"), (30.0, "32")]
    assert drawings._apart(labels) == [(20.0, "16"), (30.0, "32"), (36.1, "128, 64")]


def drawn(draw, content, path, monkeypatch):
    """Return the panels of a drawing, once it is made."""
    panels = []
    save = drawings._save

    def keep(plt, figure, path):
        panels.extend(figure.axes)
        save(plt, figure, path)

    monkeypatch.setattr(drawings, "_save", keep)
    draw(content, path)
    assert path.stat().st_size > 10_000
    return panels


def test_density_is_drawn_with_its_break_even(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    content = results_of("default", "densities", "scale-free", "widths", ours=10.0)
    for point in content["points"]:
        dense = {"tflops": 40.0 * point["density"]}
        point["peers"]["dense"] = {**point["peers"]["dense"], **dense}
    draw = drawings.draw_density
    panels = drawn(draw, content, tmp_path / "density.png", monkeypatch)
    # Neither odd widths nor layouts of another set have a panel or a point.
    titles = [panel.get_title() for panel in panels]
    assert titles == [f"{dtype}, 8192 x 8192 x 8192" for dtype in ("bf16", "fp32")]
    lines = {name: [] for name in "oDx"}
    for line in panels[0].get_lines():
        lines.get(line.get_marker(), []).append(line)
    assert [len(line.get_xdata()) for line in lines["o"]] == [8] * 4
    assert len(lines["x"]) == 4
    for line in lines["D"]:
        assert line.get_xdata()[0] == pytest.approx(0.25, rel=1e-2)
        assert line.get_markerfacecolor() == line.get_color()  # it was measured
    hollow = [line for line in panels[1].get_lines() if line.get_marker() == "D"]
    tie = panels[0].get_lines()[0]
    assert tie.get_ydata() == pytest.approx(40 * tie.get_xdata())
    assert len(lines["D"]) == 4
    assert len(hollow) == 4


def test_roofline_shows_operations_and_block_sizes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    content = results_of("default", "precisions", "small", ours=10.0)
    draw = drawings.draw_roofline
    (panel,) = drawn(draw, content, tmp_path / "roofline.png", monkeypatch)
    lines = panel.get_lines()
    cases_shown = len(cases.SETS["default"]) + len(cases.SETS["precisions"])
    for marker in "os^":
        shown = [line for line in lines if line.get_marker() == marker]
        assert len(shown) == cases_shown
        assert len({line.get_color() for line in shown}) == 5
    texts = {text.get_text() for text in panel.texts}
    assert any("16, 32" in text for text in texts)  # all at one height


def test_nothing_to_draw(tmp_path):
    pytest.importorskip("matplotlib")
    content = made_up()
    del content["points"][0]  # forward
    with pytest.raises(ValueError, match="no uniform forward points"):
        drawings.draw_density(content, tmp_path / "density.png")
    source = tmp_path / "matmul_fake.json"
    harness.write_json(source, content)
    assert report.main([str(source), "--print", "--plot"]) == 2


def test_report_draws_what_it_shows(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    source = tmp_path / "matmul_fake.json"
    harness.write_json(source, made_up())
    assert report.main([str(source), "--print", "--plot"]) == 0
    text = capsys.readouterr().out
    for path in tmp_path.glob("*.png"):
        assert f"(benchmarks/results/{path.name})" in text
    assert len(list(tmp_path.glob("*.png"))) == 2
