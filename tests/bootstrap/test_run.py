"""./run in a checkout of its own: a tiny product with a tiny lock, so that installing is quick."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.bootstrap.conftest import ROOT

WHEEL = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
PRODUCT = "import os, sys, tiny; print(tiny.VALUE, sys.argv[1:], os.getcwd())"


def make_wheel(folder: Path, version: str) -> str:
    """A package of one line; returns its line for a hashed lock."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"VALUE = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": WHEEL,
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(text)}\n"
    wheel = folder / f"tiny-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (files | {f"{info}/RECORD": record + f"{info}/RECORD,,\n"}).items():
            archive.writestr(name, text)
    return f"tiny=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
def checkout(tmp_path, wheels) -> Path:
    folder = tmp_path / "with a space" / "agentstate"
    (folder / "agentstate").mkdir(parents=True)
    shutil.copy(ROOT / "run", folder)
    shutil.copy(ROOT / "agentstate" / "install.py", folder / "agentstate")
    (folder / "agentstate" / "__main__.py").write_text(PRODUCT)
    for name in ("requirements.lock", "requirements-dev.lock"):
        (folder / name).write_text(make_wheel(wheels, "1.0"))
    return folder


@pytest.fixture
def start(checkout, wheels):
    def start(*arguments: str, cwd: Path = Path("/"), shell: str = "sh", **more: str):
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "NO_UV": "1"}
        environment = os.environ | offline | {"PYTHON": sys.executable} | more
        return subprocess.Popen(
            [shell, str(checkout / "run"), *arguments], cwd=cwd, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.long
@pytest.mark.many
def test_the_first_start_installs_and_the_next_ones_do_not(start, checkout, tmp_path):
    code, out, err = outcome(start("demo", "a b", cwd=tmp_path))
    assert (code, out) == (0, f"1.0 ['demo', 'a b'] {tmp_path}\n")
    assert "found · installing 1 packages" in err
    assert outcome(start("demo"))[2] == ""
    link = tmp_path / "link"
    link.symlink_to(checkout / "run")
    again = subprocess.run([link], capture_output=True, text=True, check=True)
    assert again.stdout.startswith("1.0 []")


@pytest.mark.long
@pytest.mark.many
def test_several_first_starts_at_once_install_once(start, checkout):
    outcomes = [outcome(process) for process in [start("serve") for _ in range(3)]]
    assert [code for code, _, _ in outcomes] == [0, 0, 0]
    told = "".join(err for _, _, err in outcomes)
    assert told.count("installing 1 packages") == 1
    assert told.count("another start is installing; waiting for it") == 2


@pytest.mark.long
@pytest.mark.many
@pytest.mark.deep
def test_a_venv_for_development_serves_as_well_and_a_newer_lock_is_installed(
    start, checkout, wheels
):
    assert outcome(start("test"))[0] == 0
    assert outcome(start("demo"))[2] == ""
    newer = make_wheel(wheels, "2.0")
    (checkout / "requirements.lock").write_text(newer)
    assert outcome(start("demo"))[2] == ""  # still made of the lock for development
    (checkout / "requirements-dev.lock").write_text(newer)
    code, out, err = outcome(start("test"))
    assert (code, out.split()[0]) == (0, "2.0")
    assert "installing" in err


@pytest.mark.long
@pytest.mark.many
def test_a_package_with_another_hash_is_not_installed_and_why_is_told(start, checkout, wheels):
    (checkout / "requirements.lock").write_text("tiny==1.0 --hash=sha256:" + "0" * 64 + "\n")
    code, out, err = outcome(start("demo"))
    assert (code, out) == (1, "")
    assert "the packages cannot be installed" in err
    (checkout / "requirements.lock").write_text(make_wheel(wheels, "1.0"))
    assert outcome(start("demo"))[0] == 0


@pytest.mark.long
@pytest.mark.many
@pytest.mark.deep
def test_a_venv_whose_python_is_gone_is_made_anew(start, checkout):
    assert outcome(start("demo"))[0] == 0
    (checkout / ".venv" / "bin" / "python").unlink()
    code, out, _ = outcome(start("demo"))
    assert (code, out.split()[0]) == (0, "1.0")


def test_without_a_python_one_line_says_what_is_needed(start, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "dirname", "cksum", "cat", "readlink"):
        (tools / name).symlink_to(str(shutil.which(name)))
    code, _, err = outcome(
        start("demo", shell=str(tools / "sh"), PATH=str(tools), HOME="/nowhere", PYTHON="",
              PYENV_ROOT="/nowhere")
    )  # fmt: skip
    assert code == 1
    assert err.startswith("agentstate needs Python 3.12 or newer")
    assert err.count("\n") == 1


@pytest.mark.long
@pytest.mark.many
def test_modules_in_the_folder_of_the_caller_are_not_taken(start, tmp_path):
    (tmp_path / "tiny.py").write_text("VALUE = 'stranger'")
    assert outcome(start("demo", cwd=tmp_path))[1].startswith("1.0")
