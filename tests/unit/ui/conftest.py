"""A folder of runs and a browser that has the token."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from view_pieces import COOKIE, TOKEN, a_viewed_run

from engine.store.layout import Layout
from engine.ui.app import build_app


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of runs."""
    return tmp_path / "runs"


@pytest.fixture
def layout(root: Path, checkpoint: Path) -> Layout:
    """The run `one`."""
    return a_viewed_run(root / "one", checkpoint)


@pytest.fixture
async def stranger(root: Path, layout: Layout) -> AsyncIterator[httpx.AsyncClient]:
    """A browser on this machine without the token; follows nowhere."""
    transport = httpx.ASGITransport(app=build_app(root, TOKEN, COOKIE))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
        yield client


@pytest.fixture
async def browser(stranger: httpx.AsyncClient) -> httpx.AsyncClient:
    """One that was given the token."""
    stranger.cookies.set(COOKIE, TOKEN, domain="127.0.0.1")
    return stranger
