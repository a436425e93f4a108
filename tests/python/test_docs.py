"""The pages for Python users: their programs run, no public name is missing, and no unknown name is used.

A block that is marked ``python`` is a whole program. It runs in a process of its own, or in two if it is marked
``python peers=2``, with a master in place of 127.0.0.1:48148. ``python ranks=3`` are three processes with the variables
that torchrun sets; ``killed=2`` behind that means that rank 2 ends by SIGKILL; ``torch>=2.15`` that older ones cannot run it. A block ``text prints`` behind a program
is what each process prints. Fragments that cannot run are marked ``py-fragment``.
"""

from __future__ import annotations

import enum
import importlib.util
import inspect
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pccl
import pytest
import ringfold
import ringfold.elastic
import ringfold.ray
import tools
from child import Spawn
from forks import torchrun_environments

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "python"
README = ROOT / "README.md"
SECONDS = 240.0
# Fragments are not run, so their number is limited. Those that need a GPU are parts of examples.
FRAGMENTS_MAX = 6
# Public names beside __all__, which is the specification's.
ALSO = {"pccl": ["DeviceType", "Result", "__version__"]}
# Classes that users receive, and never create.
RECEIVED = (pccl.AsyncReduceHandle, ringfold.elastic.PendingReduction, ringfold.ray.PeerContext)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    info: str
    text: str
    prints: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def number(self, word: str, default: int) -> int:
        """What the block says of itself as ``word=number``."""
        found = re.search(rf"\b{word}=(\d+)", self.info)
        return int(found[1]) if found else default

    @property
    def needs(self) -> list[str]:
        """What it imports that may not be installed."""
        wanted = {"torch"} if "DiLoCo" in self.text or "torchcomms" in self.text else set()
        return sorted(wanted | set(re.findall(r"^\s*import (numpy|torch)\b", self.text, re.MULTILINE)))

    @property
    def tools(self) -> list[str]:
        """What it imports that only the long tests have."""
        return sorted(set(re.findall(r"^(?:import|from) (lightning|accelerate)\b", self.text, re.MULTILINE)))


def pages() -> dict[str, str]:
    """The pages by their names; of the README, the parts for Python alone."""
    found = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
    text, kept = README.read_text(), ""
    parts = [*re.finditer(r"^### From (Python|PyTorch)\n.*?(?=^##)", text, re.MULTILINE | re.DOTALL)]
    assert len(parts) == 2, "the README lacks a part for Python"
    for part in parts:
        # Blank lines in front of it, so that lines have the numbers that an editor shows.
        kept += "\n" * (text[: part.start()].count("\n") - kept.count("\n")) + part[0]
    return {**found, README.name: kept}


def blocks(page: str, text: str) -> list[Block]:
    found: list[Block] = []
    for fence in re.finditer(r"^```(\S[^\n]*)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text[: fence.start()].count("\n") + 1
        found.append(Block(page, line, fence[1] or "", fence[2]))
    for place, block in enumerate(found):
        if block.info == "text prints":
            program = found[place - 1]
            assert place > 0 and is_program(program), f"{block} follows no program"
            found[place - 1] = Block(program.page, program.line, program.info, program.text, block.text)
    return found


def is_program(block: Block) -> bool:
    return block.info.split()[:1] == ["python"]


PAGES = pages()
BLOCKS = [block for page, text in PAGES.items() for block in blocks(page, text)]
PROGRAMS = [block for block in BLOCKS if is_program(block)]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_every_program_of_the_pages_runs_and_prints_what_they_say(
    program: Block, request: pytest.FixtureRequest, master: str, tmp_path: Path
) -> None:
    for module in program.needs:
        pytest.importorskip(module)
    needed = re.search(r"\btorch>=(\d+)\.(\d+)", program.info)
    if needed is not None:
        version = pytest.importorskip("torch").__version__
        if [int(part) for part in version.split(".")[:2]] < [int(needed[1]), int(needed[2])]:
            pytest.skip(f"torch {version} is too old")
    # Programs that set variables before they import torch need an interpreter that has not.
    sets_variables = re.search(r"os\.environ\[\"\w+\"\] = ", program.text)
    is_forked = "torch" in program.needs and not sets_variables and not program.tools
    spawn: Spawn = request.getfixturevalue("spawn_with_torch" if is_forked else "spawn")
    # Tracebacks show the lines of a file, not those of a text.
    script = tmp_path / "program.py"
    code = program.text.replace("127.0.0.1:48148", master).replace("0.0.0.0:48148", "127.0.0.1:0")
    script.write_text(code)
    home = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **home}
    env |= tools.environment(*program.tools) if program.tools else {}
    # Lightning warns where Slurm is installed.
    env["PYTHONWARNINGS"] = "ignore:The `srun` command is available"
    ranks = torchrun_environments(program.number("ranks", 0))
    children = [spawn(script, env={**env, **more}) for more in ranks or [{}] * program.number("peers", 1)]
    for number, child in enumerate(children):
        if ranks and number == program.number("killed", -1):
            assert child.wait(SECONDS) == -signal.SIGKILL, child.output
            continue
        output = child.succeed(SECONDS)
        assert program.prints is None or output == program.prints, f"{program} printed\n{output}"


def test_most_of_what_the_pages_show_is_run() -> None:
    python = [block for block in BLOCKS if re.match(r"py", block.info)]
    assert len(PROGRAMS) >= 10
    assert len(python) - len(PROGRAMS) <= FRAGMENTS_MAX
    assert all(block.info for block in BLOCKS), "a block does not say what it is"


@pytest.mark.parametrize(
    "module", [pccl, ringfold, ringfold.elastic, ringfold.ray], ids=lambda module: module.__name__
)
def test_every_public_name_is_described_with_all_its_members_and_parameters(module: ModuleType) -> None:
    missing = []
    for name in sorted({*module.__all__, *ALSO.get(module.__name__, [])}):
        section = section_of(f"`{module.__name__}.{name}")
        if section is None and module is ringfold.elastic and name in ringfold.__all__:
            continue
        if section is None:
            missing.append(f"{module.__name__}.{name}")
            continue
        if name == "DiLoCo" and importlib.util.find_spec("torch") is None:
            continue
        what = getattr(module, name)
        words = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`]+)`", section))))
        missing += [f"{module.__name__}.{name}: {word}" for word in sorted(words_of(what) - words)]
        if isinstance(what, type) and issubclass(what, enum.Enum):
            for member, value in what.__members__.items():
                if not re.search(rf"^\| `{member}`[^|]*\| {value.value} \|", section, re.MULTILINE):
                    missing.append(f"{module.__name__}.{name}: a row `{member}` | {value.value}")
    assert not missing, "docs/python/api.md says nothing of " + ", ".join(missing)


def test_elastic_pytorch_is_described() -> None:
    pytest.importorskip("torch")
    import ringfold.torch.elastic as elastic

    missing = []
    for name in elastic.__all__:
        section = section_of(f"`ringfold.torch.elastic.{name}")
        assert section is not None, f"docs/python/api.md says nothing of ringfold.torch.elastic.{name}"
        what = getattr(elastic, name)
        names = (
            words_of(what) if what is elastic.ElasticRun else parameters_of(getattr(what, "__init__", what))
        )
        if what is elastic.ElasticRun:
            names -= {"address", "options"}
        missing += [f"{name}: {word}" for word in names if not re.search(rf"`[^`]*\b{word}\b", section)]
    assert not missing, f"docs/python/api.md says nothing of {missing}"


def test_the_page_of_torchcomms_names_every_call_with_its_arguments_and_none_else() -> None:
    pytest.importorskip("torch")
    import torchcomms

    page = re.sub(r"^```.*?^```$", "", PAGES["torchcomms.md"], flags=re.MULTILINE | re.DOTALL)
    made = [torchcomms.TorchComm, torchcomms.TorchWork, torchcomms.TorchCommWindow, torchcomms.BatchSendRecv]
    known = set().union(
        *({name for name in attributes_of(each) if not name.startswith("_")} for each in made)
    )
    words = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`]+)`", page))))
    assert not known - words, f"the page says nothing of {sorted(known - words)}"
    arguments = set().union(*map(words_of, [torchcomms.TorchComm, torchcomms.new_comm])) - {"_"}
    assert not arguments - words, f"the page says nothing of {sorted(arguments - words)}"
    calls = {name for row in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE) for name in CALL.findall(row)}
    from torchcomms import distwrap

    known |= {name for name in distwrap.__all__ if inspect.isfunction(getattr(distwrap, name))}
    assert len(calls) > 40 and not calls - known, f"there is no {sorted(calls - known)}"


def test_the_page_of_torchcomms_names_what_distwrap_has() -> None:
    pytest.importorskip("torch")
    from torchcomms import distwrap

    begin = PAGES["torchcomms.md"].index("## distwrap")
    section = PAGES["torchcomms.md"][begin : PAGES["torchcomms.md"].index("\n## ", begin)]
    words = set(re.findall(r"[A-Za-z_]\w*", section))
    ours = {name for name in distwrap.__all__ if inspect.isfunction(getattr(distwrap, name))}
    missing = {
        name for name in ours if not name.startswith(("_", "get_rank", "get_world", "get_process", "is_"))
    }
    assert not missing - words, f"the page says nothing of {sorted(missing - words)}"


# A call within backticks, as a table's first column has it.
CALL = re.compile(r"`(\w+)\(")


def section_of(begin: str) -> str | None:
    """What stands under the heading that begins with this name, down to the next heading."""
    found = re.search(
        rf"^#+ {re.escape(begin)}\b[^\n]*\n.*?(?=^#+ |\Z)", PAGES["api.md"], re.MULTILINE | re.DOTALL
    )
    return found[0] if found else None


def words_of(what: object) -> set[str]:
    """The public members of a class and the parameters of what can be called."""
    if isinstance(what, ModuleType):
        return set(what.__all__)
    if isinstance(what, type):
        if issubclass(what, enum.Enum):
            return {name for name in vars(what) if re.fullmatch(r"[a-z]\w+", name)}
        own = attributes_of(what)
        members = {name for name in own if not name.startswith("_")}
        callables = [own[name] for name in members]
        callables += [] if what in RECEIVED else [own.get("__init__")]
        return members.union(*(parameters_of(each) for each in callables))
    return parameters_of(what)


def attributes_of(what: type) -> dict[str, object]:
    """The attributes of a class and of its bases in the same package."""
    package = what.__module__.partition(".")[0]
    bases = [base for base in reversed(what.__mro__) if base.__module__.partition(".")[0] == package]
    return {name: value for base in bases for name, value in vars(base).items()}


def parameters_of(what: object) -> set[str]:
    function = getattr(what, "__func__", what)
    if not inspect.isfunction(function):
        return set()
    return set(inspect.signature(function).parameters) - {"self", "cls"}


def test_links_lead_somewhere() -> None:
    for page, text in PAGES.items():
        folder = ROOT if page == README.name else FOLDER
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert target.startswith("http") or (folder / target).exists(), f"{page}: {target}"
        for example in re.findall(r"examples/python/[\w/]+\.py", text):
            assert (ROOT / example).exists(), f"{page}: {example}"


def test_every_test_and_promise_that_the_faults_page_names_exists() -> None:
    text = PAGES["when-things-break.md"]
    sources = [*ROOT.glob("crates/*/tests/**/*.rs"), *ROOT.glob("crates/*/src/**/*.rs")]
    sources += [path for path in ROOT.glob("tests/python/test_*.py") if path != Path(__file__)]
    functions = set(
        re.findall(r"(?:fn|def) (\w+)", "\n".join(path.read_text(errors="replace") for path in sources))
    )
    named = {name for name in re.findall(r"`([a-z][a-z0-9_]+)`", text) if name.count("_") >= 4}
    assert len(named) >= 15
    assert not named - functions
    promises = set(re.findall(r"\bP(\d+)\b", text))
    known = set(re.findall(r"^\*\*P(\d+)\.", (ROOT / "docs" / "fault-model.md").read_text(), re.MULTILINE))
    assert promises and promises <= known
