"""Every Python snippet in docs/ runs, in order, a page in one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_snippet_runs(page: Path):
    text = page.read_text()
    namespace: dict = {}
    snippets = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert snippets
    for snippet in snippets:
        line = text.count("\n", 0, snippet.start(1))
        exec(compile("\n" * line + snippet[1], str(page), "exec"), namespace)


def test_the_readmes_tree_names_every_file():
    readme = (ROOT / "README.md").read_text()
    for path in sorted([*(ROOT / "tinygpt").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml")]):
        if path.name != "__init__.py":
            assert path.name in readme, path
