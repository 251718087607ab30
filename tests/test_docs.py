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
    tree = readme[readme.index("\nconf/\n") : readme.index("\nhydra_plugins/")]
    folders: list[tuple[int, Path]] = []  # what a line is in, and how far each is indented
    named = set()
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= indent:
            folders.pop()
        within = folders[-1][1] if folders else ROOT
        if folder := re.match(r" *([\w/]+)/(?= |$)", line):
            within /= folder[1]
            folders.append((indent, within))
        named |= {within / name for name in re.findall(r"\b\w+\.(?:py|yaml)\b", line)}
    there = {*(ROOT / "tinygpt").rglob("*.py"), *(ROOT / "conf").rglob("*.yaml")}
    assert named == {path for path in there if path.name != "__init__.py"}
