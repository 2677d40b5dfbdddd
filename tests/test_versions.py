"""What installing leaves as it is, and what a kernel below the supported versions is told."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from notebooks import Notebook, notebook

pytestmark = pytest.mark.oldest


@pytest.fixture(scope="module")
def fresh() -> Iterator[Notebook]:
    """A notebook that has not loaded the extension."""
    with notebook() as opened:
        yield opened


def test_everything_required_is_met_so_that_installing_replaces_nothing() -> None:
    # In the environment of the oldest versions this holds for a kernel that has just these.
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=60
    )

    assert (checked.returncode, checked.stdout) == (0, "No broken requirements found.\n")


def test_a_kernel_that_runs_an_older_package_is_told_in_one_sentence(fresh: Notebook) -> None:
    version = fresh.value("(__import__('ipykernel').__version__, __import__('zmq').__version__)")
    fresh.check("import ipykernel, zmq\nipykernel.__version__, zmq.__version__ = '6.17.1', '24.0'")

    refused = fresh.run("%load_ext jupyter_mgpu")

    fresh.check(f"ipykernel.__version__, zmq.__version__ = {version}")
    assert refused.ename == "UsageError"
    assert refused.evalue == (
        "jupyter_mgpu needs ipykernel!=7.0.*,>=6.29 and pyzmq>=25, "
        "but this kernel has ipykernel 6.17.1 and pyzmq 24.0: "
        "run `%pip install 'ipykernel!=7.0.*,>=6.29' 'pyzmq>=25'` and restart the kernel."
    )
    assert fresh.run("%parpool 1").ename == "UsageError"  # no magic was registered


def test_an_older_package_on_disk_is_told_before_it_is_imported(
    fresh: Notebook, tmp_path: Path
) -> None:
    metadata = tmp_path / "torch-2.5.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.1\n")
    fresh.check(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})")

    refused = fresh.run("%load_ext jupyter_mgpu")

    fresh.check(f"sys.path.remove({str(tmp_path)!r})")
    assert "needs torch>=2.6, but this kernel has torch 2.5.1" in refused.evalue
    assert not fresh.value("'torch' in sys.modules")


def test_supported_versions_are_told_nothing(fresh: Notebook) -> None:
    loaded = fresh.check("%load_ext jupyter_mgpu")

    assert loaded.text.strip() == ""
