"""The first look in a real headless Chromium: no page complains, asks another host, or does what a trajectory says."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from chromium import PROGRAM, chromium
from proxy_pieces import make_checkpoint
from view_look import FACTS, quiet
from view_pieces import NAME, OTHER, SCRIPT, a_viewed_run, damage
from view_server import viewing

from engine.store.layout import Layout
from engine.store.state import StateFile

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian's package chromium)")

TRIAL = f"trials/train/1/{NAME}"
PAGES = (
    *(
        "state",
        "curves",
        "numbers",
        "configuration",
        "trials",
        "trials?step=0&outcome=excluded",
        "trials?split=validation",
        f"{TRIAL}/turns",
    ),
    *(f"{TRIAL}/tokens", f"{TRIAL}/tokens?only=sampled", f"trials/train/0/{OTHER}/turns"),
    *(f"trials/train/0/{OTHER}/tokens?segment=1", f"trials/train/0/{OTHER}/tokens?exchange=x1"),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


async def test_every_page_of_a_live_and_of_a_finished_run(tmp_path: Path, checkpoint: Path) -> None:
    for name in ("live", "finished"):
        a_viewed_run(tmp_path / "runs" / name, checkpoint)
    StateFile(Layout(root=tmp_path / "runs" / "finished")).update("finished", step=1, steps=2)
    with viewing(tmp_path) as started:
        async with chromium() as tab:
            assert (await quiet(tab, started.address))["place"] == "/runs"
            for run in ("live", "finished"):
                for page in PAGES:
                    facts = await quiet(tab, urljoin(started.address, f"/runs/{run}/{page}"))
                    assert (facts["run"], facts["place"]) == (run, f"/runs/{run}/{page}")
        assert started.end()[0] == 130


async def test_evil_text_is_read_as_it_was_said(tmp_path: Path, checkpoint: Path) -> None:
    a_viewed_run(tmp_path / "runs" / "one", checkpoint)
    with viewing(tmp_path) as started:
        async with chromium() as tab:
            await quiet(tab, started.address)
            facts = await quiet(tab, urljoin(started.address, f"/runs/one/{TRIAL}/turns"))
            assert SCRIPT in facts["first"]
            assert "␛]0;taken␇" in facts["first"]
            facts = await quiet(tab, urljoin(started.address, f"/runs/one/{TRIAL}/tokens?only=sampled"))
            assert facts["words"] == f"{SCRIPT}done"


async def test_damage_and_a_stranger(tmp_path: Path, checkpoint: Path) -> None:
    layout = a_viewed_run(tmp_path / "runs" / "one", checkpoint)
    damage(layout)
    with viewing(tmp_path) as started:
        async with chromium() as tab:
            seen = await tab.open(urljoin(started.address, "/runs"))
            assert seen.status == 401
            await quiet(tab, started.address)
            await quiet(tab, urljoin(started.address, "/runs/one/state"))
            seen = await tab.open(urljoin(started.address, "/runs/one/curves"))
            assert seen.status == 500
            assert "is damaged" in (await tab.value(FACTS))["problems"][0]


class _Loud(BaseHTTPRequestHandler):
    """A page that does all that ours must not do."""

    def do_GET(self) -> None:
        other = f"http://127.0.0.2:{self.server.server_port}/beacon"  # type: ignore[attr-defined]
        page = f"<nav></nav><img src='{other}'><script>window.hacked = 1; console.error('loud'); nothing()</script>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def loud() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Loud)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_page_that_does_so_would_be_caught(loud: str) -> None:
    """The other tests of this module hear what they listen for."""
    async with chromium() as tab:
        seen = await tab.open(loud)
        assert any("loud" in complaint for complaint in seen.complaints)
        assert any("Uncaught" in complaint for complaint in seen.complaints)
        assert any(urlsplit(request).hostname == "127.0.0.2" for request in seen.requests)
        assert (await tab.value(FACTS))["hacked"] == 1
