"""Where caches live."""

from pathlib import Path

import pytest

from engine.core.paths import compiled_dir


def test_what_is_compiled_is_kept_apart_for_each_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def folder(told: str) -> Path:
        (tmp_path / "cpuinfo").write_text(told)
        return compiled_dir()

    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path))
    monkeypatch.setattr("engine.core.paths._CPUINFO", tmp_path / "cpuinfo")
    one = folder("model name : A\nflags : avx512\ncpu MHz : 1\n")
    assert one.parent == tmp_path / "torchinductor"
    assert folder("model name : A\nflags : avx512\ncpu MHz : 2\n") == one
    assert folder("model name : A\nflags : avx2\ncpu MHz : 1\n") != one
    (tmp_path / "cpuinfo").unlink()
    assert compiled_dir().parent == one.parent
