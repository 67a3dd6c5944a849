"""`engine.core.garbage`: in a process of its own, since it changes the whole one."""

import subprocess
import sys

_LOOKS = """
import gc
from engine.core.garbage import NEW_OBJECTS, look_seldom

class Circle:
    ended = 0
    def __init__(self): self.me = self
    def __del__(self): Circle.ended += 1

look_seldom()
assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] == NEW_OBJECTS
kept = []
for _ in range(3 * NEW_OBJECTS):
    Circle()
    kept.append([])
print(Circle.ended)
"""


def test_circles_are_still_found() -> None:
    done = subprocess.run([sys.executable, "-c", _LOOKS], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 10_000
