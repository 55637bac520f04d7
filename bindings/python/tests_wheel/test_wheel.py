"""The wheel as a user gets it: `pip install` into an empty environment is enough to train on this machine. GRADWIRE_WHEEL names
it. Nothing else of Gradwire is within reach of what runs here: no variable, no directory in PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

WHEEL = Path(os.environ["GRADWIRE_WHEEL"])
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits"
PROGRAMS = {"gradwire", "gradwire-scheduler", "gradwire-server", "gradwire-worker"}
#: Longer than anything here takes on a busy machine.
PATIENCE_S = 300


def done(*words: str | Path, cwd: Path, path: str = "/usr/bin:/bin") -> str:
    """Runs a command that has to succeed, in an environment with PATH alone; what it printed."""
    ran = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={"PATH": path, "HOME": str(cwd), "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", "/root/.cache/pip")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, f"{words}: {ran.returncode}\n{ran.stdout}"
    return ran.stdout


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment, into which nothing but the wheel was installed."""
    place = tmp_path_factory.mktemp("user")
    done("/usr/bin/python3", "-m", "venv", "env", cwd=place)
    python = place / "env" / "bin" / "python"
    done(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL, cwd=place)
    return python


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A directory with the script and its data, and nothing else."""
    for name in ("train.py", "digits.csv"):
        shutil.copy(DIGITS / name, tmp_path)
    return tmp_path


def accuracies(said: str) -> dict[int, float]:
    """The accuracies that the workers of the script report, by rank."""
    found = re.findall(r"rank (\d+) of 2: accuracy ([0-9.]+)", said)
    return {int(rank): float(accuracy) for rank, accuracy in found}


def metadata() -> Message:
    with zipfile.ZipFile(WHEEL) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_a_script_starts_a_cluster_and_trains(python: Path, digits: Path) -> None:
    """It ends with 1 where a worker has learnt too little."""
    done(python, "train.py", cwd=digits)


def test_launch_function_returns_what_was_learnt(python: Path, digits: Path) -> None:
    (digits / "both.py").write_text(
        "import gradwire, train\n"
        "if __name__ == '__main__':\n"
        "    print('learnt', gradwire.launch(train.train, servers=2, workers=2))\n"
    )
    said = done(python, "both.py", cwd=digits)
    learnt = [float(number) for number in re.findall(r"0\.\d+", said.split("learnt")[1])]
    assert len(learnt) == 2 and min(learnt) > 0.9, said


def test_the_command_launches_a_training(python: Path, digits: Path) -> None:
    path = f"{python.parent}:/usr/bin:/bin"
    said = done("gradwire", "launch", "-n", "2", "-s", "1", "--", "python", "train.py", cwd=digits, path=path)
    learnt = accuracies(said)
    assert sorted(learnt) == [0, 1] and min(learnt.values()) > 0.9, said


def test_the_command_needs_no_directory_in_path(python: Path, digits: Path) -> None:
    words = ("launch", "-n", "2", "-s", "1", "--", python, "train.py")
    said = done(python, "-m", "gradwire", *words, cwd=digits)
    assert min(accuracies(said).values()) > 0.9, said


def test_the_trainer_of_the_demo_is_there(python: Path, digits: Path) -> None:
    path = f"{python.parent}:/usr/bin:/bin"
    words = ("launch", "-n", "2", "-s", "2", "--", "gradwire-worker", "train", "--data", "digits.csv", "--epochs", "2")
    said = done("gradwire", *words, cwd=digits, path=path)
    assert "weights_sha256=" in said, said


def test_programs_lie_where_the_installer_put_them(python: Path, tmp_path: Path) -> None:
    """Below a directory that is no environment, too."""
    target = tmp_path / "target"
    done(python, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", target, WHEEL, cwd=tmp_path)
    script = f"import sys; sys.path.insert(0, {str(target)!r})\nfrom gradwire.launching import program\n"
    found = done(python, "-c", script + "print(program('gradwire-server'))", cwd=tmp_path).strip()
    assert Path(found).is_relative_to(target) and os.access(found, os.X_OK)
    done(found, "--version", cwd=tmp_path)


def test_the_wheel_has_all_programs_and_promises_what_it_keeps(tmp_path: Path) -> None:
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(tmp_path)
        scripts = {Path(name).name: archive.getinfo(name) for name in archive.namelist() if ".data/scripts/" in name}
    assert set(scripts) == PROGRAMS
    assert all(info.external_attr >> 16 & 0o111 for info in scripts.values()), "pip makes them executable"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    binaries = [path for path in files if path.name in PROGRAMS or path.suffix == ".so"]
    assert len(binaries) == 5
    for binary in binaries:
        needed = subprocess.run(["objdump", "-p", binary], check=True, capture_output=True, text=True).stdout
        libraries = re.findall(r"NEEDED\s+(\S+)", needed)
        allowed = ("libc.so", "libm.so", "libgcc_s.so", "ld-linux", "libpthread.so", "libdl.so", "librt.so")
        assert all(name.startswith(allowed) for name in libraries), f"{binary.name} needs {libraries}"
        newest = max((int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", needed)), default=0)
        promised = re.search(r"manylinux_2_(\d+)", WHEEL.name)
        assert promised is None or newest <= int(promised[1]), f"{binary.name} needs glibc 2.{newest}"
    print(f"{WHEEL.name}: {WHEEL.stat().st_size / 1e6:.1f} MB")


def test_metadata_is_complete_and_strictly_valid() -> None:
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", WHEEL], capture_output=True, text=True)
    assert checked.returncode == 0 and "PASSED" in checked.stdout, checked.stdout + checked.stderr
    fields = metadata()
    for field in ("Summary", "Author-email", "License-Expression", "Keywords", "Requires-Python", "Description-Content-Type"):
        assert fields[field], field
    assert set(fields.get_all("Provides-Extra", [])) == {"test", "torch", "tensorflow", "jax", "mxnet"}
    assert len(fields.get_all("Project-URL", [])) >= 4 and len(fields.get_all("Classifier", [])) >= 8
    assert len(fields.get_all("License-File", [])) == 2
    assert "gradwire launch" in str(fields.get_payload())
