import re
import stat
import subprocess
import sys

from tests.bootstrap.conftest import ROOT
from tests.bootstrap.sites import environment

READ = re.compile(r"\b((?:AGENTSTATE|CELERY|DATABASE)_[A-Z0-9_]*[A-Z0-9])\b")
SHOW = "from agentstate import settings as s; print(s.SECRET_KEY)"


def key_of(home) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=ROOT, env=environment(home), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_every_variable_is_in_the_documents():
    sources = [ROOT / "agentstate" / "settings.py", ROOT / "agentstate" / "embedded.py"]
    read = set()
    for source in sources:
        for call in re.findall(r'env\.\w+\(\s*"(\w+)"', source.read_text()):
            read.add(call)
    told = set(READ.findall((ROOT / "docs" / "settings.md").read_text()))
    assert read
    assert read - told == set()


def test_the_secret_key_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    home = tmp_path / "home"
    first = key_of(home)
    assert len(first) >= 50
    assert key_of(home) == first
    assert stat.S_IMODE((home / "secret-key").stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == ["secret-key"]


def test_a_file_that_lost_its_key_is_refused_with_what_to_do_and_stays_as_it_is(tmp_path):
    """S-502 and S-503 (docs/sweeps.md): the site came up without a key, and every page of it
    failed; or with one of zeros, which a cut of power leaves and anybody guesses."""
    home = tmp_path / "home"
    key_of(home)
    for left in (b"", b"half of it", b"\0" * 67, b"\xff" * 67, b"key" * 20):
        (home / "secret-key").write_bytes(left)
        done = subprocess.run(
            [sys.executable, "-m", "agentstate", "serve", "--port", "0"], cwd=ROOT,
            env=environment(home), text=True, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0
        assert "secret-key is (not shown), but must be a key of at least 32" in done.stderr
        assert "Traceback" not in done.stderr
        assert "half of it" not in done.stderr
        assert (home / "secret-key").read_bytes() == left
