"""Every example runs to its end in several processes, and all of them agree."""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import fashion_mnist
import pytest
from child import Child, Spawn
from variants import is_long

pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
SECONDS = 120.0


class Examples:
    """Starts examples, all with one master. One that imports torch runs in a forked process, but for the hello world."""

    def __init__(self, request: pytest.FixtureRequest, master: str) -> None:
        self._request = request
        self._master = master

    def start(self, name: str, *arguments: object) -> Child:
        # One thread a process: the machine has few cores, and all peers run on it.
        env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # A busy machine may take long to start the second one.
        timeout = () if name == "fifteen_lines.py" else ("--timeout", SECONDS)
        script = EXAMPLES / name
        is_forked = "import torch" in script.read_text() and name != "hello_world_torch.py"
        spawn: Spawn = self._request.getfixturevalue("spawn_with_torch" if is_forked else "spawn")
        return spawn(script, "--master", self._master, *timeout, *arguments, env=env)

    def outputs(self, name: str, *arguments: object, peers: int = 2) -> list[str]:
        """The outputs of this many peers, all of which exit with 0."""
        children = [self.start(name, *arguments) for _ in range(peers)]
        return [child.succeed(SECONDS) for child in children]


@pytest.fixture
def examples(request: pytest.FixtureRequest, master: str) -> Examples:
    return Examples(request, master)


def last(output: str) -> str:
    return output.splitlines()[-1]


def the_same(lines: list[str]) -> str:
    """The line that all of them have printed."""
    assert len(set(lines)) == 1, lines
    return lines[0]


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


def test_every_example_is_in_the_list() -> None:
    folder, listed = EXAMPLES.parent, (EXAMPLES.parent / "README.md").read_text()
    listed = re.sub(r"^```.*?^```$", "", listed, flags=re.MULTILINE | re.DOTALL)
    files = [path for path in folder.rglob("*") if path.suffix in {".py", ".cu", ".c", ".cpp", ".h", ".hpp"}]
    rust = [path.stem for path in (folder.parent / "crates" / "ringfold" / "examples").glob("*.rs")]
    assert len(files) > 20 and len(rust) > 5
    words = set(re.findall(r"[\w.]+", " ".join(re.findall(r"`([^`]+)`", listed))))
    assert not {*(path.name for path in files), *rust} - words


def test_every_example_has_help(spawn: Spawn, request: pytest.FixtureRequest) -> None:
    others = {"tiny_transformer.py", "ddp_ten_lines.py", "loss_with_kills.py"}
    # Their packages are not installed; test_elastic_tools.py runs them.
    others |= {f"elastic_{package}.py" for package in ("lightning", "accelerate", "ray")}
    names = sorted(path for path in EXAMPLES.glob("*.py") if path.name not in others)
    assert len(names) == 10
    if importlib.util.find_spec("torch") is None:
        names = [path for path in names if "torch" not in path.read_text()]
    else:
        spawn = request.getfixturevalue("spawn_with_torch")
    children = [spawn(path, "--help") for path in names]
    for child in children:
        assert "--master HOST:PORT" in child.succeed(SECONDS)


def test_the_hello_world_reaches_its_last_revision(examples: Examples) -> None:
    outputs = examples.outputs("hello_world.py")
    assert the_same([last(output) for output in outputs]) == "reached revision 5"
    # Five steps with a gradient of 1, 2, ... 8.
    assert all("revision 5: 2 peers, weights [5.0, 10.0, 15.0, 20.0, 25.0," in output for output in outputs)


def test_the_hello_world_for_torch_finds_the_line(examples: Examples) -> None:
    pytest.importorskip("torch")
    end = the_same([last(output) for output in examples.outputs("hello_world_torch.py")])
    found = re.fullmatch(r"reached revision 20: y = (\S+) x \+ (\S+)", end)
    assert found is not None, end
    assert abs(float(found[1]) - 3) < 0.5 and abs(float(found[2]) - 1) < 0.2


def test_a_lone_hello_world_times_out_with_exit_code_3(examples: Examples) -> None:
    lonely = examples.start("hello_world.py", "--timeout", 0.2)
    assert lonely.wait(SECONDS) == 3
    assert "no other peer joined" in lonely.output


def test_ctrl_c_ends_an_example_at_once_and_without_a_traceback(examples: Examples) -> None:
    lonely = examples.start("hello_world.py")
    lonely.wait_for("alone", SECONDS)
    lonely.signal(signal.SIGINT)
    assert lonely.wait(10) == 130
    assert "Traceback" not in lonely.output


def test_fifteen_lines_are_enough(examples: Examples) -> None:
    source = (EXAMPLES / "fifteen_lines.py").read_text()
    code = [line for line in source.partition('"""\n')[2].splitlines() if line and not line.startswith("#")]
    assert len(code) <= 15
    assert the_same([last(output) for output in examples.outputs("fifteen_lines.py")])


def test_tags_launched_in_any_order_are_all_reduced(examples: Examples) -> None:
    outputs = examples.outputs("concurrent_reduces.py")
    assert the_same([last(output) for output in outputs]).startswith("done, digest")
    assert "round 20/20" in outputs[0]


def test_concurrent_reduces_survive_the_death_of_a_peer(examples: Examples) -> None:
    arguments = ("--rounds", 200, "--elements", 200_000, "--pace", 0.02)
    survivors = [examples.start("concurrent_reduces.py", *arguments) for _ in range(2)]
    victim = examples.start("concurrent_reduces.py", *arguments)
    victim.wait_for("3 peers", SECONDS)
    victim.kill()
    outputs = [survivor.succeed(SECONDS) for survivor in survivors]
    the_same([last(output) for output in outputs])
    assert all("round 200/200: 12 tensors with retry, 2 peers" in output for output in outputs)


def test_quantised_results_are_the_same_on_all_peers(examples: Examples) -> None:
    outputs = examples.outputs("quantized.py", "--steps", 100)
    assert the_same([last(output) for output in outputs]).startswith("done, total")
    sent = re.findall(r"sent (\d+) bytes instead of (\d+), largest error (\d\.\d+)", outputs[0])
    assert len(sent) == 2
    for small, large, error in sent:
        assert int(small) < 0.3 * int(large)
        assert 0 < float(error) < 0.1


def test_mnist_is_learnt_and_two_peers_end_equal(examples: Examples) -> None:
    pytest.importorskip("torch")
    data = fashion_mnist.folder()
    outputs = examples.outputs("mnist_ddp.py", "--data", data, "--steps", 300)
    end = the_same([last(output) for output in outputs])
    assert float(end.split()[1]) > 75
    for output in outputs:
        assert losses(output)[-1] < 0.5 * losses(output)[0]


def test_a_late_joiner_of_mnist_receives_the_state_and_ends_equal(examples: Examples) -> None:
    pytest.importorskip("torch")
    # Paced, so that the run is not over before the third process has started; peers draw as much as they like.
    arguments = ("--data", fashion_mnist.folder(), "--steps", 300, "--pace", 0.02, "--report", 5)
    first = [examples.start("mnist_ddp.py", *arguments) for _ in range(2)]
    first[0].wait_for("step 20/300", SECONDS)
    late = examples.start("mnist_ddp.py", *arguments, "--batch", 32)
    joined = re.fullmatch(
        r"joined 3 peers at step (\d+), received (\d+) bytes", late.wait_for("joined", SECONDS)
    )
    assert joined is not None and int(joined[1]) >= 20
    # The model and both of Adam's moments.
    assert int(joined[2]) > 3 * 4 * 100_000
    outputs = [child.succeed(SECONDS) for child in [*first, late]]
    the_same([last(output) for output in outputs])
    assert all(re.search(r"step 300/300: loss \S+, 3 peers", output) for output in outputs)


def test_mnist_goes_on_when_a_peer_is_killed(examples: Examples) -> None:
    pytest.importorskip("torch")
    arguments = ("--data", fashion_mnist.folder(), "--steps", 200, "--pace", 0.02, "--report", 5)
    children = [examples.start("mnist_ddp.py", *arguments) for _ in range(3)]
    victim = children.pop()
    victim.wait_for("3 peers", SECONDS)
    victim.kill()
    outputs = [child.succeed(SECONDS) for child in children]
    the_same([last(output) for output in outputs])
    assert all(re.search(r"step 200/200: loss \S+, 2 peers", output) for output in outputs)


@pytest.mark.parametrize("name", ["diloco.py", "async_diloco.py"])
def test_diloco_learns_and_all_peers_end_equal(examples: Examples, name: str) -> None:
    pytest.importorskip("torch")
    outputs = examples.outputs(name)
    assert the_same([last(output) for output in outputs]).startswith("done")
    for output in outputs:
        assert losses(output)[-1] < 0.7 * losses(output)[0]


def test_diloco_goes_on_when_a_peer_is_killed(examples: Examples) -> None:
    pytest.importorskip("torch")
    children = [examples.start("diloco.py", "--phases", 30) for _ in range(3)]
    victim = children.pop()
    victim.wait_for("3 peers", SECONDS)
    victim.kill()
    outputs = [child.succeed(SECONDS) for child in children]
    assert the_same([last(output) for output in outputs]).startswith("done")


@pytest.mark.skipif(not is_long(), reason="the long variant: takes 30 s")
def test_a_picture_of_the_loss_shows_kills_and_joins(spawn: Spawn, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "loss.svg"
    words = ("--seconds", 30, "--kill-every", 3, "--output", output)
    printed = spawn(EXAMPLES / "loss_with_kills.py", *words).succeed(5 * SECONDS)
    kills, joins = printed.count("kill -9"), printed.count("joined: ")
    assert kills > 0 and joins > 3
    root = ElementTree.parse(output).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert (
        texts.count("kill -9") == kills and sum((text or "").startswith("joined") for text in texts) == joins
    )
