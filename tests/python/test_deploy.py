"""The recipes of deploy/: their program runs, and their files are valid. test_slurm.py, test_systemd.py and test_ray.py run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tools
from child import Child, Spawn
from peers import DEADLINE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
# The first in which all fields that the manifests use are stable.
VERSION = "1.33"
SCORE_MAX = 2.5
"""The exposure that systemd-analyze computes for a unit is from 0 to 10."""


def run(*words: str | Path) -> str:
    """What a command prints. It has to succeed."""
    done = subprocess.run(
        [str(word) for word in words], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for page in (*DEPLOY.rglob("*.md"), ROOT / "docs" / "operations.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


# --- the program -----------------------------------------------------------------------------------------------------


class Training:
    """Starts replicas of train.py."""

    def __init__(self, spawn: Spawn, master: str, folder: Path) -> None:
        self._spawn, self._master, self._folder = spawn, master, folder

    def replica(self, name: str, *more: object, env: dict[str, str] | None = None) -> Child:
        options = ("--name", name, "--checkpoints", self._folder, "--every", 10, "--pace", 0.01, *more)
        env = {"RINGFOLD_MASTERS": self._master, "OMP_NUM_THREADS": "1", **(env or {})}
        return self._spawn(DEPLOY / "train.py", *options, env=env)


@pytest.fixture
def training(spawn_with_torch: Spawn, master: str, tmp_path: Path) -> Training:
    return Training(spawn_with_torch, master, tmp_path / "checkpoints")


def end_of(replica: Child) -> str:
    return replica.succeed(DEADLINE).splitlines()[-1]


def test_the_program_survives_a_kill_and_resumes_after_sigterm(training: Training) -> None:
    pytest.importorskip("torch")
    survivor, victim = (training.replica(name, "--replicas-min", 2, "--steps", 5000) for name in "ab")
    victim.wait_for("step 15:", DEADLINE)
    victim.kill()
    joiner = training.replica("c", "--replicas-min", 2, "--steps", 5000)
    joiner.wait_for("replicas", DEADLINE)
    joiner.wait_for("step ", DEADLINE)
    for replica in (survivor, joiner):
        replica.signal(signal.SIGTERM)
    for replica in (survivor, joiner):
        assert replica.wait(DEADLINE) == 143, replica.output
    stopped = int(re.findall(r"stopped at step (\d+)", survivor.output)[0])
    again = [training.replica(name, "--replicas-min", 2, "--steps", stopped + 20) for name in "de"]
    ends = {end_of(replica) for replica in again}
    assert len(ends) == 1 and re.fullmatch(rf"end: step {stopped + 20}, model \w+", ends.pop())
    for replica in again:
        resumed = re.search(r"resumes at step (\d+)", replica.output)
        assert resumed is not None and stopped - 20 <= int(resumed[1]) <= stopped, replica.output
    # A supervisor may start it once more when the run is over.
    assert f"end: step {stopped + 20}," in end_of(training.replica("f", "--steps", stopped + 20))


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_program_tells_systemd_what_it_does(kind: str, training: Training, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    name = str(tmp_path / "notify") if kind == "path" else f"\0ringfold-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        systemd.settimeout(DEADLINE)
        replica = training.replica("a", "--steps", 3, env={"NOTIFY_SOCKET": name.replace("\0", "@")})
        messages = [systemd.recv(4096).decode()]
        while messages[-1] != "STOPPING=1":
            messages.append(systemd.recv(4096).decode())
        replica.succeed(DEADLINE)
    assert messages[0] == "READY=1\nSTATUS=joining the run"
    assert messages[1:-1] == [f"STATUS=step {step} of 3, 1 replicas" for step in range(3)]


# --- systemd ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units_are_valid_and_hardened(tmp_path: Path) -> None:
    paths = []
    for source in (DEPLOY / "systemd").glob("*.service"):
        text = source.read_text()
        assert "Type=notify" in text and "LoadCredential=token:" in text
        # Programs that are not installed here are errors.
        text = re.sub(r"^ExecStart=/\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        paths.append(tmp_path / source.name.replace("@.", "@1."))
        paths[-1].write_text(text)
    assert len(paths) == 4
    assert run("systemd-analyze", "verify", "--man=no", *paths) == ""
    for path in paths:
        score = re.search(
            r"exposure level for \S+: ([\d.]+)", run("systemd-analyze", "security", "--offline=yes", path)
        )
        assert score is not None and float(score[1]) <= SCORE_MAX, f"{path.name}: {score}"


# --- Slurm, containers -------------------------------------------------------------------------------------------------


def test_the_batch_scripts_can_be_parsed() -> None:
    scripts = sorted((DEPLOY / "slurm").glob("*.sbatch"))
    assert len(scripts) == 2
    for script in scripts:
        run("bash", "-n", script)
        assert "#SBATCH --requeue" in script.read_text()


@pytest.mark.parametrize("tool", ["shellcheck", "hadolint"])
def test_scripts_and_the_container_file_pass_the_linters(tool: str) -> None:
    files = {
        "shellcheck": (DEPLOY / "slurm").glob("*.sbatch"),
        "hadolint": [DEPLOY / "container" / "Containerfile"],
    }
    run(tools.program(tool), *files[tool])


def test_the_container_file_copies_what_exists_and_runs_without_root() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    for stage in ("master", "peer"):
        part = text[text.index(f" AS {stage}\n") :].partition("\nFROM")[0]
        assert "\nUSER 65532:65532\n" in part
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "deploy/train.py" in kept and all((ROOT / path).exists() for path in kept)


# --- Kubernetes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def yaml() -> Any:
    return pytest.importorskip("yaml", reason="PyYAML is not installed")


def documents(yaml: Any, path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def manifests(yaml: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects, those of files that need no kustomize and those that it makes."""
    yield from (("ringfold.yaml", each) for each in documents(yaml, KUBERNETES / "ringfold.yaml"))
    if shutil.which("kubectl") is not None:
        for overlay in sorted(path.parent for path in KUBERNETES.glob("overlays/*/kustomization.yaml")):
            rendered = yaml.safe_load_all(run("kubectl", "kustomize", overlay))
            yield from ((overlay.name, each) for each in rendered)
    else:
        yield from (
            ("jobset", each) for each in documents(yaml, KUBERNETES / "overlays" / "jobset" / "jobset.yaml")
        )


def test_the_manifests_are_valid(yaml: Any) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    # Those of the base are in all overlays.
    found = {json.dumps(each): (source, each) for source, each in manifests(yaml)}
    for source, each in found.values():
        checked = each
        if each["kind"] == "JobSet":
            # Its own schema is not in the validator; that of the Job in it is.
            (job,) = each["spec"]["replicatedJobs"]
            named = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
            checked = {**named, **job["template"]}
        try:
            validator.validate(checked, VERSION, strict=True)
        except validator.ValidationError as error:
            raise AssertionError(f"{source}: {each['kind']} {each['metadata']['name']}: {error}") from None
    kinds = {each["kind"] for _, each in found.values()}
    wanted = {"Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy", "Job", "JobSet", "ConfigMap"}
    assert wanted <= kinds


def test_the_manifests_fit_together(yaml: Any) -> None:
    found = documents(yaml, KUBERNETES / "ringfold.yaml")
    of_kind = {
        kind: [each for each in found if each["kind"] == kind] for kind in {each["kind"] for each in found}
    }
    (settings,) = of_kind["ConfigMap"]
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind["Service"]}
    listed = settings["data"]["RINGFOLD_MASTERS"].split(",")
    assert listed == [f"{name}:48148" for name in sorted(services)]
    (job,) = of_kind["Job"]
    pods = [each["spec"]["template"] for each in (*of_kind["Deployment"], job)]
    assert len(pods) == 4
    for pod in pods:
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        names = [*settings["data"], *(variable["name"] for variable in container.get("env", []))]
        assert not [name for name in names if name.startswith(("RINGFOLD_PORT", "RINGFOLD_SERVICE_"))]
        assert spec["enableServiceLinks"] is False and spec["securityContext"]["runAsNonRoot"] is True
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["volumes"]}
    for place, deployment in enumerate(of_kind["Deployment"], 1):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels["ringfold/master"] == str(place)
        selector = services[listed[place - 1].partition(":")[0]]["selector"]
        assert selector.items() <= labels.items()
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} == {
            "/healthz",
            "/readyz",
        }
        variables = {variable["name"] for variable in container["env"]}
        assert "RINGFOLD_HTTP_TOKEN_FILE" in variables, "it serves HTTP on all addresses"
    assert settings["data"]["RINGFOLD_HTTP_HOSTS"].split(",") == sorted(services)
    (policy,) = of_kind["NetworkPolicy"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert all(selected.items() <= pod["metadata"]["labels"].items() for pod in pods)
    assert int(settings["data"]["RINGFOLD_RECOVER_MIN"]) == job["spec"]["completions"]
    # A JobSet has the same Job.
    (jobset,) = documents(yaml, KUBERNETES / "overlays" / "jobset" / "jobset.yaml")
    (base,) = documents(yaml, KUBERNETES / "base" / "peers.yaml")
    assert jobset["spec"]["replicatedJobs"][0]["template"]["spec"] == base["spec"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_plain_manifests_are_those_of_the_base() -> None:
    plain = (KUBERNETES / "ringfold.yaml").read_text().partition("\n")[2]
    assert run("kubectl", "kustomize", KUBERNETES / "base") == plain, "render it again: see its first line"
