"""The README's Python cells run in order in a real kernel."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

README = Path(__file__).parents[1] / "README.md"
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
def test_the_cells_of_the_readme_run_in_order(tmp_path: Path) -> None:
    sources = FENCED.findall(README.read_text(encoding="utf-8"))
    cells = [nbformat.v4.new_code_cell(source) for source in sources]

    NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()

    assert len(cells) >= 5
    assert all(cell.execution_count for cell in cells)
