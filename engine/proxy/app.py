"""The model proxy: the harness's own protocol in front of a token engine, captured to the token.

One application in this process serves all trials, each on a socket of its own, behind its own path and key. Limits
hold per trial; the model's own context bounds them.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakSet

from engine.core.contracts import Harness, Inference
from engine.core.errors import ConfigError, ConfigErrors, RunError
from engine.core.records import Trial
from engine.core.specs import ModelInfo
from engine.proxy.conversation import Conversation
from engine.proxy.http import build_app
from engine.proxy.session import TrialSession
from engine.proxy.sockets import SocketServer
from engine.proxy.spill import Spill
from engine.proxy.turn import Limits, Turns
from engine.tokens import Renderer, Shape, load_renderer

RENDER_THREADS = 2
"""Large prompts that are rendered at the same time."""


class LlmProxy:
    """Serves every trial's harness from one token engine."""

    def __init__(
        self,
        *,
        temperature: float,
        top_p: float,
        max_prompt_tokens: int,
        max_response_tokens: int,
        max_tokens_per_turn: int,
        max_body_mb: int,
    ) -> None:
        self.temperature = temperature
        self.top_p = top_p
        self.max_prompt_tokens = max_prompt_tokens
        self.max_response_tokens = max_response_tokens
        self.max_tokens_per_turn = max_tokens_per_turn
        self.max_body_mb = max_body_mb
        self._started: _Started | None = None

    async def start(self, model: ModelInfo, inference: Inference) -> None:
        """Load the model's renderer. Raises ConfigError when the first prompt's limit leaves no room for an answer."""
        if self.max_prompt_tokens >= model.max_context:
            problem = f"leaves no room for a response in the model's context of {model.max_context} tokens"
            raise ConfigError("proxy.max_prompt_tokens", self.max_prompt_tokens, problem, "lower it")
        renderer = await asyncio.to_thread(load_renderer, model)
        server = SocketServer(build_app(self.max_body_mb << 20))
        self._started = _Started(model, inference, renderer, server)

    def check(self, harnesses: Mapping[str, Harness]) -> None:
        """Each harness's own calls, written as the model would, are read back the same. Raises ConfigErrors."""
        started = self._running()
        errors = []
        for name, harness in harnesses.items():
            shapes = {
                str(turn["name"]): Shape(name=turn["name"], arguments=turn["arguments"])
                for turn in harness.demonstration
                if turn["name"]
            }
            for shape in shapes.values():
                problem = started.renderer.misreads(shape)
                if problem:
                    full = f"does not fit this model's calls for harness={name}: {problem}"
                    way_out = "name the renderer of the model's own family (docs/models.md)"
                    errors.append(ConfigError("model.renderer", started.model.renderer, full, way_out))
                    break
        if errors:
            raise ConfigErrors(errors)

    def open(self, trial: Trial, harness: Harness, port: int, folder: Path | None = None) -> TrialSession:
        """A session for one trial; it serves nothing until it is given a socket. `folder` holds its routed experts."""
        started = self._running()
        limits = Limits(
            max_turns=harness.max_turns,
            max_context=min(started.model.max_context, self.max_prompt_tokens + self.max_response_tokens),
            max_prompt_tokens=self.max_prompt_tokens,
            max_response_tokens=self.max_response_tokens,
            max_tokens_per_turn=self.max_tokens_per_turn,
        )
        turns = Turns(
            trial=trial,
            model=started.model.name,
            limits=limits,
            renderer=started.renderer,
            inference=started.inference,
            threads=started.threads,
            conversation=Conversation(harness.client.volatile),
            hold_back=harness.client.hold_back,
            side_calls=harness.client.side_calls,
            spill=Spill(folder),
        )
        session = TrialSession(turns, started.server, port)
        started.sessions.add(session)
        return session

    def _running(self) -> "_Started":
        if self._started is None:
            raise RunError("the proxy was not started")
        return self._started

    async def stop(self) -> None:
        """End every session. Idempotent."""
        started, self._started = self._started, None
        if started is None:
            return
        await asyncio.gather(*(session.close() for session in list(started.sessions)), return_exceptions=True)
        started.threads.shutdown(wait=False)


class _Started:
    """What exists between `start` and `stop`."""

    def __init__(self, model: ModelInfo, inference: Inference, renderer: Renderer, server: SocketServer) -> None:
        self.model, self.inference, self.renderer, self.server = model, inference, renderer, server
        self.threads = ThreadPoolExecutor(RENDER_THREADS, thread_name_prefix="render")
        self.sessions: WeakSet[TrialSession] = WeakSet()
        """Those that somebody still holds: a session lives as long as its socket is served."""
