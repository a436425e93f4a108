"""``ringfold.ray``: peers as actors of a real Ray, which are lost by Ray's own means. Ray runs with ``./test --long`` alone."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ringfold.ray
import tools
from child import Child, Spawn
from peers import DEADLINE

DEPLOY = Path(__file__).parents[2] / "deploy"
BEGIN = """
import logging, os, sys, threading, time

import ray
import ringfold.ray

logging.basicConfig(level=logging.INFO, format="%(message)s")


def work(peer, until):
    import numpy as np
    import ringfold

    weights = np.zeros(4, np.float32)
    first = None
    with ringfold.Run(peer.masters, {"weights": weights}, peers_min=peer.peers, name=peer.name) as run:
        for step in run.steps(until=until):
            first = step if first is None else first
            gradient = np.full(4, peer.number, np.float32)
            run.average(gradient)
            weights += gradient
            peer.report((step, ray.get_runtime_context().get_node_id()))
            time.sleep(0.05)
    return first, run.revision, weights.tolist(), peer.is_restarted, "PCCL_JOIN_TOKEN" in os.environ


def fail(peer):
    if peer.number == 1:
        raise KeyError("no such file")
    time.sleep(600)


class At(threading.Event):
    # Set when the peers have made some steps.
    def __call__(self, number, value):
        self.nodes = {**getattr(self, "nodes", {}), number: value[1]}
        if value[0] >= 20:
            self.set()


def later(call):
    thread = threading.Thread(target=lambda: at_20.wait(100) and call(), daemon=True)
    thread.start()


at_20 = At()
"""
# ray.kill is Ray's call for tests of failures.
KILLED = """
ray.init(include_dashboard=False, num_cpus=4)
later(lambda: ray.kill(ray.get_actor(f"chaos/{sys.argv[2]}"), no_restart=False))
masters = int(sys.argv[1])
results = ringfold.ray.run(work, 2, masters=masters, kwargs={"until": 90}, on_report=at_20, name="chaos", timeout=100)
for number, result in enumerate(results):
    print("end:", number, *result, flush=True)
try:
    ray.get_actor("chaos/peer-0")
except ValueError:
    print("end: no actor is left", flush=True)
"""
# Three machines, each with a master. A machine is a raylet with its workers; Ray's own tests lose one like this.
NODE_LOST = """
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=1)
ray.init(address=cluster.address)
head = ray.get_runtime_context().get_node_id()


def lose_a_node():
    lost = next(node for node in cluster.list_all_nodes() if node.node_id in at_20.nodes.values() and node.node_id != head)
    print("lost:", [number for number, node in at_20.nodes.items() if node == lost.node_id], flush=True)
    cluster.remove_node(lost, allow_graceful=False)


later(lose_a_node)
results = ringfold.ray.run(work, 3, masters=3, kwargs={"until": 150}, on_report=at_20, timeout=200)
for number, result in enumerate(results):
    print("end:", number, *result, flush=True)
"""
ERRORS = """
ray.init(include_dashboard=False, num_cpus=2)
try:
    ringfold.ray.run(fail, 2, timeout=60)
except ringfold.ray.PeerError as error:
    print("error:", error.number, error, flush=True)
try:
    ringfold.ray.run(lambda peer: time.sleep(600), 2, timeout=8)
except TimeoutError as error:
    print("error:", error, flush=True)
try:
    ringfold.ray.run(fail, 3, placement="PACK", start_timeout=20)
except TimeoutError as error:
    print("error:", error, flush=True)
try:
    ringfold.ray.run(lambda peer: os.kill(os.getpid(), 9), 1, max_restarts=1, timeout=60)
except ringfold.ray.PeerError as error:
    print("error:", error.number, str(error).splitlines()[0], flush=True)
print("placed:", ringfold.ray.run(lambda peer: peer.number * 2, 2, placement="PACK", timeout=60), flush=True)
"""


@pytest.fixture
def ray(spawn: Spawn) -> Iterator[Spawn]:
    """Starts a program that uses Ray."""
    # Paths of sockets have to be short.
    folder = tempfile.mkdtemp(prefix="rf-", dir="/tmp")
    env = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

    def start(script_or_code: str | Path, *arguments: object, **_: object) -> Child:
        return spawn(
            script_or_code, *arguments, env={**env, "OMP_NUM_THREADS": "1", **tools.environment("ray")}
        )

    yield start
    shutil.rmtree(folder, ignore_errors=True)


def ends(output: str) -> list[list[str]]:
    """What the peers have returned: first step, last step, weights, whether it was restarted, whether it had a token."""
    return re.findall(r"^end: \d (\d+) (\d+) (\[.*\]) (\w+) (\w+)$", output, re.MULTILINE)


@pytest.mark.parametrize(("masters", "victim"), [(1, "peer-1"), (1, "master-0"), (3, "master-0")])
def test_an_actor_that_ray_kills_is_restarted_and_joins_again(masters: int, victim: str, ray: Spawn) -> None:
    output = ray(BEGIN + KILLED, masters, victim).succeed(2 * DEADLINE)
    found = ends(output)
    assert len(found) == 2 and {end[1] for end in found} == {"90"}, output
    is_peer = victim == "peer-1"
    # Peer 0, which adds 0, is alone in the step in which peer 1 is killed, unless that was between two steps.
    weights = {end[2] for end in found}
    assert len(weights) == 1 and weights <= {str([sum] * 4) for sum in (45.0, 44.5)[: 1 + is_peer]}, output
    assert {end[4] for end in found} == {"True"}
    assert [end[3] for end in found] == ["False", str(is_peer)]
    assert (int(found[1][0]) > 20) == is_peer, output
    assert ("peer-1 was lost: Ray has started it again" in output) == is_peer
    assert "end: no actor is left" in output


def test_a_machine_with_a_peer_and_a_master_is_lost(ray: Spawn) -> None:
    output = ray(BEGIN + NODE_LOST).succeed(3 * DEADLINE)
    found = ends(output)
    assert len(found) == 3 and {end[1] for end in found} == {"150"}, output
    assert len({end[2] for end in found}) == 1, output
    lost = re.search(r"^lost: \[(\d)\]", output, re.MULTILINE)
    assert lost is not None and found[int(lost[1])][3] == "True", output


def test_errors_name_the_peer_and_end_the_others(ray: Spawn) -> None:
    output = ray(BEGIN + ERRORS).succeed(3 * DEADLINE)
    errors = [line.removeprefix("error: ") for line in output.splitlines() if line.startswith("error: ")]
    assert errors[0] == "1 peer-1 failed: 'no such file'", output
    assert errors[1] == "timed out after 8 s waiting for peer-0, peer-1"
    assert errors[2].startswith(
        "no room for 3 peers that need {'CPU': 1} each: the cluster has 2 CPU with placement PACK"
    )
    assert errors[3].startswith("0 peer-0 was lost, and is not started again: ")
    assert "placed: [0, 2]" in output


def test_the_recipe_for_ray_trains_and_resumes(ray: Spawn, tmp_path: Path) -> None:
    for steps in (20, 30):
        options = (
            "--steps",
            steps,
            "--every",
            10,
            "--replicas-min",
            2,
            "--checkpoints",
            tmp_path / "checkpoints",
        )
        output = ray(DEPLOY / "ray" / "submit.py", "--peers", 2, "--", *options).succeed(2 * DEADLINE)
        assert "all replicas have ended: [0, 0]" in output
        assert len(set(re.findall(rf"end: step {steps}, model (\w+)", output))) == 1, output
    assert "resumes at step 20" in output


def test_wrong_arguments_are_named() -> None:
    for options, text in (
        ({"peers": 0}, "invalid peers 0: must be at least 1"),
        ({"masters": 0}, "invalid masters 0: "),
        ({"masters": ""}, "invalid masters '': "),
        ({"max_restarts": -2}, "invalid max_restarts -2: "),
        ({"placement": "pack"}, "invalid placement 'pack': "),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            ringfold.ray.run(print, **{"peers": 1, **options})


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_a_missing_ray_is_named() -> None:
    with pytest.raises(ImportError, match="pip install ray"):
        ringfold.ray.run(print, 1)
