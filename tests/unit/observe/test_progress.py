"""Progress by a clock that only the test moves: what is printed when, and that no silence lasts."""

import io
import threading

import pytest
from rich.console import Console

from engine.observe.progress import Heartbeat, PlainProgress, RichProgress, Shown, period


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Plain:
    """A plain progress with interval 8 s and its lines."""

    def __init__(self) -> None:
        self.clock, self._stream = Clock(), io.StringIO()
        self.view = PlainProgress(self._stream, 8.0, self.clock)

    def new(self) -> list[str]:
        """What was printed since the last call."""
        lines = self._stream.getvalue().splitlines()
        self._stream.seek(0)
        self._stream.truncate()
        return lines


@pytest.fixture
def plain() -> Plain:
    return Plain()


def test_each_phase_and_each_end_is_told_at_once(plain: Plain) -> None:
    plain.view.phase("step 1/2 rollout", 0, 4, "")
    plain.clock.now += 2
    plain.view.phase("step 1/2 rollout", 3, 4, "reward 0.50")
    plain.clock.now += 3
    plain.view.phase("step 1/2 rollout", 4, 4, "reward 0.25")
    plain.clock.now += 62
    plain.view.phase("step 1/2 train", 0, 0, "")
    assert plain.new() == [
        "[  0:00] step 1/2 rollout 0/4 | 0 s",
        "[  0:05] step 1/2 rollout 4/4 · reward 0.25 | 5 s",
        "[  1:07] step 1/2 train | 0 s",
    ]


def test_a_silence_ends_with_what_is_going_on_now(plain: Plain) -> None:
    plain.view.phase("step 1/2 rollout", 0, 4, lambda: f"4 running (oldest {plain.clock.now - 100:.0f} s in agent)")
    plain.new()
    for _ in range(20):
        plain.clock.now += 1
        plain.view.beat()
    assert plain.new() == [
        "[  0:08] step 1/2 rollout 0/4 · 4 running (oldest 8 s in agent) | 8 s",
        "[  0:16] step 1/2 rollout 0/4 · 4 running (oldest 16 s in agent) | 16 s",
    ]


def test_a_line_of_its_own_ends_a_silence_too(plain: Plain) -> None:
    plain.view.phase("image of verify", 0, 2, "")
    plain.clock.now += 7
    plain.view.say("unpacking")
    plain.clock.now += 7
    plain.view.beat()
    assert plain.new()[1:] == ["[  0:07] unpacking"]
    plain.clock.now += 1
    plain.view.beat()
    assert plain.new() == ["[  0:15] image of verify 0/2 | 15 s"]


def test_nothing_is_repeated_before_there_is_a_phase(plain: Plain) -> None:
    plain.clock.now += 100
    plain.view.beat()
    assert plain.new() == []


def test_the_heartbeat_beats_until_it_is_stopped() -> None:
    beats, enough = 0, threading.Event()

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            enough.set()

    heart = Heartbeat(0.001, [beat])
    heart.start()
    assert enough.wait(60)
    heart.stop()
    last = beats
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())
    assert beats == last


def test_a_shown_view_beats_by_itself() -> None:
    class Listening(RichProgress):
        heard = threading.Event()

        def beat(self) -> None:
            super().beat()
            self.heard.set()

    also = threading.Event()
    view = Listening(Console(file=io.StringIO()))
    with Shown(view, 0.01, [also.set]) as shown:
        assert shown is view
        assert view.heard.wait(60)
        assert also.wait(60)


@pytest.mark.parametrize("interval_s", [0.5, 8.0, 60.0])
def test_the_heartbeat_looks_often_enough(interval_s: float) -> None:
    """At the configured 8 s a silence ends within 10 s."""
    assert period(interval_s) <= min(1.0, interval_s / 8)


def test_bars_in_a_terminal() -> None:
    stream = io.StringIO()
    with RichProgress(Console(file=stream, force_terminal=True, width=120)) as progress:
        progress.phase("step 1/2 rollout", 3, 16, lambda: "2 running (oldest 3 s in setup), reward 0.50")
        progress.beat()
        progress.say("trying e0-a-s0-a0 again: [sandbox] lost")
        progress.phase("step 1/2 train", 0, 0, "")
    shown = stream.getvalue()
    assert "step 1/2 rollout" in shown
    assert "3/16" in shown
    assert "2 running (oldest 3 s in setup), reward 0.50" in shown
    assert "[sandbox] lost" in shown
