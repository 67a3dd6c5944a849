"""A small configuration tree of its own, so that these tests do not move with the real one."""

from pathlib import Path

import pytest

from engine.config.schemas import Registry, Tree, load_registry

HERE = Path(__file__).parent


@pytest.fixture
def tree() -> Tree:
    return Tree(configs=HERE / "tree" / "configs", schemas=HERE / "tree" / "schemas")


@pytest.fixture
def registry(tree: Tree) -> Registry:
    return load_registry(tree.schemas)
