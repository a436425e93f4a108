"""The wheel works in environments that have numpy, or torch, or neither."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from child import Start
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# torch takes seconds to import; this is for machines that are busy.
DEADLINE = 120

TWO_PEERS = """
import importlib.util, sys, threading, pccl, ringfold

assert not {"numpy", "torch"} & set(sys.modules), "an import of pccl or ringfold brought one of them in"
for name in ABSENT:
    assert importlib.util.find_spec(name) is None, f"{name} is installed"

def peer(address, values, state, infos):
    with pccl.Communicator(address) as comm:
        comm.connect()
        while comm.world_size < 2:
            comm.update_topology()
        comm.sync_shared_state(pccl.SharedState([info(state)]))
        infos.append(comm.all_reduce(values, values, op=pccl.ReduceOp.SUM))

def meet(mine, other, my_state, other_state):
    infos = []
    with pccl.MasterNode("127.0.0.1:0") as master:
        thread = threading.Thread(target=peer, args=[master.address, other, other_state, infos])
        thread.start()
        peer(master.address, mine, my_state, infos)
        thread.join(60)
    assert [info.world_size for info in infos] == [2, 2], infos
    assert bytes(mine) == bytes(other) and bytes(my_state) == bytes(other_state)
"""

EXPLAINED = """
def explained(library, attempt):
    try:
        attempt()
    except ImportError as error:
        assert f"pip install {library}" in str(error), error
    else:
        raise AssertionError(f"{library} was not missed")
"""

NO_NUMPY = """
explained("numpy", lambda: pccl.TensorInfo.from_numpy(object(), "weights"))
explained("numpy", lambda: pccl.DataType.FLOAT.to_numpy_dtype())
explained("numpy", lambda: pccl.DataType.from_numpy_dtype("float32"))
"""

NO_TORCH = """
explained("torch", lambda: pccl.TensorInfo.from_torch(object(), "weights"))
explained("torch", lambda: pccl.DataType.FLOAT.to_torch_dtype())
explained("torch", lambda: ringfold.DiLoCo)
explained("torch", lambda: importlib.import_module("ringfold.torch"))
"""


class Environment:
    """A virtual environment with the wheel and some packages of the tests' environment."""

    def __init__(self, folder: Path, wheel: Path, *libraries: str) -> None:
        self.scripts = folder / "bin"
        self.python = self.scripts / "python"
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        (packages,) = folder.glob("lib/python3*/site-packages")
        for library in libraries:
            for installed in with_requirements(library):
                link(installed, packages)
        options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        run([*pip, "install", *options, str(wheel)])


def run(words: list[str]) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"


def with_requirements(name: str) -> list[Distribution]:
    """The package and all that it needs, numpy only if it was named."""
    found: dict[str, Distribution] = {}
    names = [name]
    while names:
        name = names.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            # A requirement that is met by other means, or only asked for elsewhere.
            assert found, f"{name} is not installed"
            continue
        for text in found[name].requires or []:
            requirement = Requirement(text)
            extras = {"extra": ""}
            if requirement.name != "numpy" and (
                not requirement.marker or requirement.marker.evaluate(extras)
            ):
                names.append(requirement.name)
    return list(found.values())


def link(installed: Distribution, packages: Path) -> None:
    """Links a package instead of copying it: torch is several GB."""
    tops = {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(installed.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel of ./test, or the newest one."""
    if named := os.environ.get("RINGFOLD_WHEEL"):
        return Path(named)
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    built = sorted(target.glob("wheels/ringfold-*.whl"), key=lambda path: path.stat().st_mtime)
    if not built:
        pytest.skip("there is no wheel: maturin build, or RINGFOLD_WHEEL")
    return built[-1]


@pytest.fixture(scope="module")
def neither(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("neither"), wheel)


@pytest.fixture(scope="module")
def numpy_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    pytest.importorskip("numpy", exc_type=ImportError)
    return Environment(tmp_path_factory.mktemp("numpy"), wheel, "numpy")


@pytest.fixture(scope="module")
def torch_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    pytest.importorskip("torch", exc_type=ImportError)
    return Environment(tmp_path_factory.mktemp("torch"), wheel, "torch")


@pytest.fixture(params=["neither", "numpy_only", "torch_only"])
def environment(request: pytest.FixtureRequest) -> Environment:
    found: Environment = request.getfixturevalue(request.param)
    return found


def test_without_numpy_and_torch_all_that_has_a_buffer_is_reduced_and_shared(
    start: Start, neither: Environment
) -> None:
    program = """
from array import array

def info(state):
    return pccl.TensorInfo(name="state", data=state)

for make in [lambda *v: array("f", v), lambda *v: array("q", v), lambda *v: bytearray(v)]:
    mine, other = make(1, 2, 3), make(10, 20, 30)
    meet(mine, other, make(4, 5), make(4, 6))
    assert list(mine) == [11, 22, 33], mine
behind = bytearray(b"abc")
meet(memoryview(behind), memoryview(bytearray(3)), bytearray(1), bytearray(1))
assert behind == b"abc"
"""
    words = ['ABSENT = ["numpy", "torch"]', TWO_PEERS, program, EXPLAINED, NO_NUMPY, NO_TORCH]
    start(neither.python, "-c", "\n".join(words)).succeed(DEADLINE)


def test_numpy_alone_is_enough(start: Start, numpy_only: Environment) -> None:
    program = """
def info(state):
    return pccl.TensorInfo.from_numpy(state, "state")

import numpy as np
mine, other = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), dtype=np.float32)
expected = mine + other
meet(mine, other, np.zeros(4), np.ones(4))
assert (mine == expected).all(), mine
"""
    words = ['ABSENT = ["torch"]', TWO_PEERS, program, EXPLAINED, NO_TORCH]
    start(numpy_only.python, "-c", "\n".join(words)).succeed(DEADLINE)


def test_torch_alone_is_enough(start: Start, torch_only: Environment) -> None:
    program = """
def info(state):
    return pccl.TensorInfo.from_torch(state, "state")

import torch
for dtype in [torch.float32, torch.bfloat16]:
    mine, other = torch.arange(6, dtype=dtype).reshape(2, 3), torch.ones(2, 3, dtype=dtype)
    expected = mine + other
    meet(mine, other, torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.ones(4)))
    assert torch.equal(mine, expected) and torch.equal(other, expected), mine
"""
    bits = "def bytes(tensor):\n    return tensor.tolist()"
    words = ['ABSENT = ["numpy"]', TWO_PEERS, bits, program, EXPLAINED, NO_NUMPY]
    start(torch_only.python, "-c", "\n".join(words)).succeed(DEADLINE)


@pytest.mark.parametrize("name", ["ccoip_master", "pccl_master", "ringfold"])
def test_the_commands_answer_in_every_environment(start: Start, environment: Environment, name: str) -> None:
    assert "Usage:" in start(environment.scripts / name, "--help").succeed(DEADLINE)
    assert start(environment.scripts / name, "--version").succeed(DEADLINE).startswith(f"{name} ")


def test_help_of_both_packages_is_documentation_in_every_environment(
    start: Start, environment: Environment
) -> None:
    program = "import pydoc, pccl, ringfold; print(pydoc.render_doc(pccl), pydoc.render_doc(ringfold))"
    text = start(environment.python, "-c", program).succeed(DEADLINE)
    assert "all_reduce" in text and "MasterNode" in text and "steps" in text
