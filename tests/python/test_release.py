"""What a release needs: packages that can be published, and metadata of the wheel."""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Tests of crates that it uses depend on it: without a version that dependency is left out of packages. The commands name
# the version themselves.
UNPUBLISHED = {"ringfold-fuzz", "ringfold-lab"}
# zerocopy-derive and the other derive macros need different versions of syn; embedded-io is an optional dependency of
# postcard, which is not built. ring uses an older getrandom, and an older windows-sys, which is not built.
TWICE = {"embedded-io", "getrandom", "syn", "windows-sys"}


def read(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text())


def test_every_crate_can_be_packaged() -> None:
    workspace = read("Cargo.toml")["workspace"]
    version = workspace["package"]["version"]
    for name, dependency in workspace["dependencies"].items():
        if isinstance(dependency, dict) and "path" in dependency:
            expected = None if name in UNPUBLISHED else version
            assert dependency.get("version") == expected, f"{name} has version {dependency.get('version')}"
    crates = sorted(ROOT.glob("crates/*/Cargo.toml"))
    assert len(crates) > 10
    for path in crates:
        package = tomllib.loads(path.read_text())["package"]
        fields = {"description", "license", "authors", "readme", "keywords", "categories", "rust-version"}
        assert not fields - package.keys(), f"{path} lacks {sorted(fields - package.keys())}"
        for source in path.parent.rglob("src/**/*.rs"):
            for line in source.read_text().splitlines():
                if "include_str!(" in line or "include_bytes!(" in line:
                    target = (source.parent / line.split('"')[-2]).resolve()
                    assert target.is_relative_to(path.parent), (
                        f"{source} includes {target}, outside the package"
                    )


def test_no_other_crate_is_locked_in_two_versions() -> None:
    names = Counter(package["name"] for package in read("Cargo.lock")["package"])
    assert {name for name, count in names.items() if count > 1} <= TWICE


def test_the_wheel_names_its_authors_and_its_license() -> None:
    about = metadata("ringfold")
    assert about["Author"] == "The Ringfold authors"
    assert about["License-Expression"] == "MIT OR Apache-2.0"
    assert set(about.get_all("License-File") or []) == {"LICENSE-APACHE", "LICENSE-MIT"}
    assert about["Summary"] and about["Keywords"] and about["Requires-Python"] == ">=3.11"
    assert about["Version"] == read("Cargo.toml")["workspace"]["package"]["version"]


def test_what_users_of_a_release_look_for_is_there() -> None:
    for name in ("CHANGELOG.md", "SECURITY.md", "docs/stability.md", "LICENSE-MIT", "LICENSE-APACHE"):
        assert (ROOT / name).stat().st_size > 500, name
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert "./test" in workflow
    script = ROOT / "scripts" / "release-wheel"
    if not os.access(script, os.X_OK):
        pytest.fail(f"{script} cannot be executed")
