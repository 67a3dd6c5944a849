"""One trial as a person follows it: stages, each call of the model's as it is answered, and what it came to.

Invariant: what a model, an agent or a grader wrote is shown and never obeyed: control characters become signs, but in
the patch and the grader's output line ends stay. While a person works in a shell nothing is printed into it: what is
said meanwhile is told afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.core.records import Exchange, Scored, Verdict
from engine.observe.progress import ProgressView
from engine.wire.recorded import answer_made

_SHOWN = 160
"""Characters of an answer, and of a call's arguments."""
_TESTS = 8
"""Tests that are named."""


class Watch:
    """Tells on a progress view."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._kept: list[str] | None = None
        self._calls = self._tokens = 0

    def say(self, line: str) -> None:
        if self._kept is not None:
            self._kept.append(line)
        else:
            self._view.say(line)

    def stage(self, name: str) -> None:
        """Something begins."""
        if self._kept is None:
            self._view.phase(name, 0, 0, self._note)

    def heard(self, exchange: Exchange) -> None:
        self._calls += 1
        self._tokens += len(exchange.sampled_ids)
        for line in call_lines(exchange):
            self.say(line)

    def beat(self) -> None:
        """Called again and again by a heartbeat."""
        if self._kept is None:
            self._view.beat()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Print nothing; tell it afterwards."""
        self._kept = []
        try:
            yield
        finally:
            kept, self._kept = self._kept, None
            for line in kept:
                self._view.say(line)

    def _note(self) -> str:
        return f"{self._calls} calls, {self._tokens} tokens sampled" if self._calls else ""


def call_lines(exchange: Exchange) -> list[str]:
    """A line for the call, and one for each tool call that it made."""
    tokens = (
        f"prompt {exchange.prompt_length}, sampled {len(exchange.sampled_ids)} tokens in {exchange.generate_s:.1f} s"
    )
    if exchange.error:
        return [f"call {exchange.id}: {tokens}; came to nothing: {_first_line(exchange.error)}"]
    try:
        answer = answer_made(exchange.protocol, exchange.response)
    except (ValueError, LookupError, TypeError):
        return [f"call {exchange.id}: {tokens}: {_first_line(exchange.response)}"]
    text = _first_line(answer.text) or "(no text)"
    calls = [f"  {_first_line(call.name)} {_first_line(call.arguments)}" for call in answer.tool_calls]
    return [f"call {exchange.id}: {tokens}, {exchange.finish_reason or 'unfinished'}: {text}", *calls]


def end_lines(scored: Scored) -> list[str]:
    """What a trial came to: how it ended and why, findings, patch, verdict with tests and evidence."""
    trajectory, verdict = scored.trajectory, scored.verdict
    excluded = " (excluded: neither trained on nor counted)" if verdict is None else ""
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in trajectory.timings.items())
    lines = [
        f"ended      {trajectory.termination}{excluded}: {_first_line(trajectory.reason)}",
        f"calls      {len(trajectory.exchanges)}, {trajectory.sampled_tokens} tokens sampled",
        f"stages     {stages}",
    ]
    for finding in (*trajectory.findings, *(verdict.findings if verdict is not None else ())):
        paths = f" ({', '.join(map(_shown, finding.paths))})" if finding.paths else ""
        lines.append(f"finding    {finding.stage}/{finding.phase}: {_first_line(finding.detail)}{paths}")
    if trajectory.patch is not None:
        count = len(trajectory.patch.changes)
        lines.append(f"patch      {count} file{'' if count == 1 else 's'}" + (":" if count else ""))
        lines += [f"  {_shown(line)}" for line in trajectory.patch.diff.splitlines()]
        lines += [f"artefact   {_shown(one.path)}, {len(one.contents)} bytes" for one in trajectory.patch.artifacts]
    return [*lines, *(_verdict_lines(verdict) if verdict is not None else [])]


def _verdict_lines(verdict: Verdict) -> list[str]:
    word = "resolved" if verdict.resolved else "not resolved"
    good = sum(test.ok for test in verdict.tests)
    lines = [
        f"verdict    {word}, reward {verdict.reward:g}",
        f"tests      {good} of {len(verdict.tests)} as they must be",
    ]
    bad = [test for test in verdict.tests if not test.ok]
    lines += [f"  {test.outcome} {test.kind} {_shown(test.id)}" for test in bad[:_TESTS]]
    lines += [f"  and {len(bad) - _TESTS} more"] if len(bad) > _TESTS else []
    return [*lines, "evidence", *(f"  {_shown(line)}" for line in verdict.evidence.splitlines())]


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return _shown(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…")


def _shown(text: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\t" else "·" for sign in text)
