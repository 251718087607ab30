import sysconfig
from pathlib import Path

import pytest

from tinygpt.data import python_stdlib
from tinygpt.data.corpus import texts
from tinygpt.data.python_stdlib import PythonStdlib
from tinygpt.errors import UserError


def test_the_library_is_split_by_file_and_leaves_out_what_is_not_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a.py", "json/b.py", "test/c.py", "site-packages/d.py", "encodings/e.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    for i in range(200):
        (tmp_path / f"m{i}.py").write_text(f"# m{i}\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(python_stdlib, "ENOUGH", 1)
    split = PythonStdlib(val_fraction=0.1).splits()
    train, validation = set(texts(split.train)), set(texts(split.validation))
    assert train.isdisjoint(validation)
    assert train | validation == {"# a.py\n", "# json/b.py\n", *(f"# m{i}\n" for i in range(200))}
    assert 10 <= len(validation) <= 30
    (tmp_path / "a.py").unlink()  # a file that goes moves no other across the split
    assert set(texts(PythonStdlib(val_fraction=0.1).splits().validation)) == validation - {"# a.py\n"}


def test_a_python_without_source_points_to_ones_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="data=text_files"):
        PythonStdlib().splits()
