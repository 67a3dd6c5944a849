"""How vLLM's processes wait for each other, on the real vLLM."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.inference.vllm_plugin import PAUSE

ROOT = Path(__file__).parents[2]
SCRIPT = """
from unittest.mock import MagicMock
from vllm.distributed.device_communicators import shm_broadcast
from engine.inference import vllm_plugin

naps = []
vllm_plugin.time = MagicMock(sleep=naps.append)
vllm_plugin.register()
shm_broadcast.get_open_zmq_inproc_path = lambda: "inproc://x"
shm_broadcast.zmq.Poller = MagicMock()
shm_broadcast.SpinCondition(is_reader=True, context=MagicMock(), notify_address="").wait()
print(naps)
"""
pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.mark.parametrize(("setting", "naps"), [("0.0002", "[0.0002]"), (None, "[]")])
def test_a_waiting_reader_naps_for_as_long_as_it_is_told(setting: str | None, naps: str) -> None:
    """The setting reaches the very wait of vLLM's workers; without it vLLM keeps its own way."""
    environment = {name: value for name, value in os.environ.items() if name != PAUSE}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment | ({PAUSE: setting} if setting else {}),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout.splitlines()[-1:] == [naps], done.stderr
