"""vLLM as a token-in, token-out engine over HTTP: on CPUs and on GPUs the same client.

Starts `vllm.entrypoints.openai.api_server` as a process tree of its own and talks to `/inference/v1/generate` in ids,
over a Unix socket that only this user can open or over a loopback port. Invariants: the ids, log-probabilities (under
temperature and top-p) and routed experts of a `Generation` are vLLM's raw output, stop token included; a weight update
waits for the generations in flight and holds back new ones, so all tokens of one generation carry one policy version;
the prefix cache is dropped at each update and salted with the version besides, so no token is sampled from older keys.
It refuses answers that do not fit together.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from engine.core.contracts import Say, TokenSink
from engine.core.credentials import HIDDEN, is_credential
from engine.core.errors import ConfigError, InferenceError, RunError, WeightSyncError
from engine.core.records import Generation
from engine.core.specs import ModelInfo
from engine.core.temporary import temporary_folder
from engine.inference.answers import check_status, generation, prompt_logprobs, reason
from engine.inference.gate import Gate
from engine.inference.http_client import HttpClient
from engine.inference.probe import WeightProbe
from engine.inference.process import ServerProcess, port_taken
from engine.inference.token_stream import StreamedAnswer
from engine.inference.vllm_faults import interpreter_fault, way_out
from engine.inference.vllm_folder import FOLDER, folder_problems, server_variables
from engine.inference.vllm_plugin import BACKEND, LONGEST_S, PAUSE, read_pause
from engine.inference.weight_file import Shapes, check_same, checkpoint_shapes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ATTEMPTS = 3
"""Tries of one request; only a connection that broke before any byte of the answer is tried again."""
_GENERATE = "/inference/v1/generate"
_JSON = {"content-type": "application/json"}
_OWN_ARGUMENTS = (
    "model",
    "served-model-name",
    "host",
    "port",
    "uds",
    "dtype",
    "max-model-len",
    "max-num-seqs",
    "tensor-parallel-size",
    "enforce-eager",
    "gpu-memory-utilization",
    "enable-return-routed-experts",
    "logprobs-mode",
    "enable-scale-out",
    "enable-prompt-tokens-details",
    "weight-transfer-config",
    "generation-config",
)


class VllmServer:
    """One vLLM server, started and stopped with the run."""

    def __init__(
        self,
        *,
        python: str | None,
        port: int | None,
        max_concurrency: int,
        tensor_parallel: int,
        enforce_eager: bool,
        cpu_kv_cache_gb: float | None,
        gpu_memory_utilization: float | None,
        start_timeout_s: float,
        request_timeout_s: float,
        update_timeout_s: float,
        stop_grace_s: float,
        probe: WeightProbe,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        self.python = python
        self.port = port
        self.max_concurrency = max_concurrency
        self.tensor_parallel = tensor_parallel
        self.enforce_eager = enforce_eager
        self.cpu_kv_cache_gb = cpu_kv_cache_gb
        self.gpu_memory_utilization = gpu_memory_utilization
        self.start_timeout_s = start_timeout_s
        self.request_timeout_s = request_timeout_s
        self.update_timeout_s = update_timeout_s
        self.stop_grace_s = stop_grace_s
        self.probe = probe
        self.arguments = arguments
        self.environment = environment
        self._gate = Gate()
        self._server: ServerProcess | None = None
        self._folder = ExitStack()
        self._socket: Path | None = None
        self._client: httpx.AsyncClient | None = None
        """For control; sampling has a leaner one."""
        self._sampler: HttpClient | None = None
        self._model: ModelInfo | None = None
        self._shapes: Shapes = {}
        self._version = 0
        self._broken = ""
        self._behind = 0

    # ---------------------------------------------------------------- before the start

    def problems(self) -> Sequence[ConfigError]:
        errors = []
        if self.python is None and importlib.util.find_spec("vllm") is None:
            way = "run scripts/setup, or name an interpreter that has vLLM"
            errors.append(ConfigError("inference.python", self.python, "vLLM is not installed here", way))
        if self.python is not None:
            fault = interpreter_fault(self.python) if shutil.which(self.python) else "no such interpreter"
            way = "name an interpreter that has vLLM, or null for this one"
            errors += [ConfigError("inference.python", self.python, fault, way)] if fault else []
        if self.port is not None and port_taken(self.port):
            errors.append(self._taken(self.port))
        for name in self.arguments:
            if name.replace("_", "-").removeprefix("no-") in _OWN_ARGUMENTS:
                way = "remove it; model, scale and the other inference keys decide it"
                errors.append(ConfigError(f"inference.arguments.{name}", self.arguments[name], "set already", way))
            elif is_credential(name.replace("-", "_").rpartition("_")[2]):
                way = "leave it out, or set its variable (HF_TOKEN) in the shell or in inference.environment"
                problem = "a credential would stand in the list of processes and in vLLM's log"
                errors.append(ConfigError(f"inference.arguments.{name}", HIDDEN, problem, way))
        return [*errors, *folder_problems(), *self._pause_problems()]

    def _pause_problems(self) -> Iterator[ConfigError]:
        """Told before the start: a process of vLLM that cannot read it dies without naming the key."""
        pause = self.environment.get(PAUSE, os.environ.get(PAUSE))
        try:
            if pause is not None:
                read_pause(pause)
        except ValueError:
            key = f"inference.environment.{PAUSE}"
            key = key if PAUSE in self.environment else f"{PAUSE} (environment variable)"
            way = f"give seconds from 0 to {LONGEST_S:g}, for example 0.0002"
            yield ConfigError(key, pause, "is no such number", way)

    async def prepare(self, say: Say) -> None:
        """Nothing is built. Raises ConfigError when something is missing."""
        for error in self.problems():
            raise error
        say("vLLM: installed")

    # ---------------------------------------------------------------- life

    async def start(self, model: ModelInfo, directory: Path) -> None:
        """Start serving; the log is `directory/vllm.log`. Raises ConfigError (port taken) or RunError."""
        self._model = model
        self._shapes = checkpoint_shapes(model.path)
        self._version, self._broken = 0, ""
        if self.port is not None and port_taken(self.port):
            raise self._taken(self.port)
        folder = self._folder.enter_context(temporary_folder(FOLDER))
        self._socket = folder / "vllm" if self.port is None else None
        variables = server_variables(folder, self.cpu_kv_cache_gb) | dict(self.environment)
        self._server = ServerProcess("vLLM", self._command(model), variables, directory / "vllm.log")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.max_concurrency)
        transport = httpx.AsyncHTTPTransport(limits=limits, uds=str(self._socket) if self._socket else None)
        address = f"http://127.0.0.1:{self.port}" if self.port is not None else "http://vllm"
        self._client = httpx.AsyncClient(base_url=address, transport=transport, trust_env=False)
        self._sampler = HttpClient(self._socket, self.port, self.max_concurrency)
        try:
            await self._server.start(self.stop_grace_s, folder)
            await self._wait()
            await self._control("/init_weight_transfer_engine", {"init_info": {}})
        except BaseException:
            await self.stop()
            raise

    async def _wait(self) -> None:
        """Until it serves. Raises RunError, with the way out in this configuration's keys."""
        assert self._server is not None
        try:
            await self._server.wait_until(self._healthy, self.start_timeout_s)
        except TimeoutError as error:
            way = f"raise inference.start_timeout_s={self.start_timeout_s:g}, or see what it does"
            raise RunError(f"{error}; {way}: {self._server.log}") from error
        except RunError as error:
            raise RunError(f"{error}; {way_out(str(error), vars(self))}; its log is {self._server.log}") from error

    async def restart(self) -> None:
        """As the contract says. Generations that were in flight fail; none goes on in the new process."""
        if self._model is None or self._server is None:
            raise RunError("vLLM was never started, so it cannot be started again")
        self._behind = self._version or self._behind
        await self.stop()
        await self.start(self._model, self._server.log.parent)

    async def stop(self) -> None:
        client, self._client = self._client, None
        sampler, self._sampler = self._sampler, None
        try:
            if sampler is not None:
                sampler.close()
            if client is not None:
                await client.aclose()
        finally:
            if self._server is not None:
                await self._server.stop()
            self._folder.close()

    def _taken(self, port: int) -> ConfigError:
        way = "choose another port, or null for a private Unix socket"
        return ConfigError("inference.port", port, "the port is taken on 127.0.0.1", way)

    def _command(self, model: ModelInfo) -> list[str]:
        command = [self.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        settings: dict[str, Any] = {
            "model": str(model.path),
            "served-model-name": model.name,
            "uds": str(self._socket) if self._socket else None,
            "host": None if self._socket else "127.0.0.1",
            "port": None if self._socket else self.port,
            "dtype": model.dtype,
            "max-model-len": model.max_context,
            "max-num-seqs": self.max_concurrency,
            "tensor-parallel-size": self.tensor_parallel,
            "gpu-memory-utilization": self.gpu_memory_utilization,
            "enforce-eager": self.enforce_eager,
            "logprobs-mode": "processed_logprobs",
            "enable-return-routed-experts": bool(model.num_layers),
            "enable-scale-out": True,
            "enable-prompt-tokens-details": True,
            "weight-transfer-config": json.dumps({"backend": BACKEND}),
            "generation-config": "vllm",
            **self.arguments,
        }
        for name, value in settings.items():
            command += _flag(name.replace("_", "-"), value)
        return command

    async def _healthy(self) -> bool:
        if self._client is None:
            return False
        try:
            return (await self._client.get("/health", timeout=5.0)).status_code == 200
        except httpx.TransportError:
            return False

    # ---------------------------------------------------------------- sampling

    async def generate(
        self,
        prompt_ids: "NDArray[np.int32]",
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int,
        stop_token_ids: Sequence[int],
        routed_start: int,
        session: str,
        sink: TokenSink | None = None,
    ) -> Generation:
        """As the contract says. Only `stop_token_ids` end a generation: the model's own EOS must be among them."""
        parameters = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "stop_token_ids": list(stop_token_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "routed_experts_prompt_start": routed_start,
            "detokenize": False,
        }
        async with self._gate.sampling():
            model, version = self._serving(), self._version
            answer = await self._sample(prompt_ids, parameters, session, sink)
            return generation(answer, model, len(prompt_ids), routed_start, version)

    async def score(self, token_ids: "NDArray[np.int32]") -> "NDArray[np.float32]":
        async with self._gate.sampling():
            parameters = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 0, "detokenize": False}
            return prompt_logprobs(await self._sample(token_ids, parameters, "score"), token_ids)

    def failure(self) -> str:
        if self._broken:
            return f"vLLM's weights are undefined since an update failed: {self._broken}"
        return "" if self._server is None or self._alive() else f"vLLM ended by itself ({self._state()})"

    def _serving(self) -> ModelInfo:
        if self._model is None or self._client is None:
            raise InferenceError("vLLM is not running: start it first")
        if self._broken:
            raise InferenceError(f"vLLM's weights are undefined since an update failed: {self._broken}")
        if self._behind:
            raise InferenceError(f"vLLM was started again and has no weights of version {self._behind} yet")
        return self._model

    async def _sample(
        self,
        ids: "NDArray[np.int32]",
        parameters: Mapping[str, Any],
        session: str,
        sink: TokenSink | None = None,
    ) -> Mapping[str, Any]:
        """One request to the token endpoint. Raises InferenceError, with the server's own words where it has some."""
        request: dict[str, Any] = {
            "model": self._serving().name,
            "token_ids": ids,
            "sampling_params": parameters,
            "cache_salt": f"v{self._version}",
            "stream": sink is not None,
        }
        if sink is not None:
            request["stream_options"] = {"include_usage": True}
        body = orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY)
        began = False

        def hand_over(new: Sequence[int]) -> None:
            nonlocal began
            began = True
            if sink is not None:
                sink(new)

        for attempt in range(_ATTEMPTS):
            self._serving()  # another process may have taken the place of the one that broke off
            try:
                async with asyncio.timeout(self.request_timeout_s):
                    return await self._answer(body, session, hand_over if sink is not None else None)
            except TimeoutError as error:
                raise InferenceError(f"vLLM gave {session} no answer within {self.request_timeout_s:.0f} s") from error
            except ConnectionError as error:
                await asyncio.sleep(0.2 * (attempt + 1))
                if began or not self._alive() or attempt == _ATTEMPTS - 1:
                    raise InferenceError(f"{session} lost vLLM ({self._state()}): {error!r}") from error
        raise InferenceError(f"{session} lost vLLM ({self._state()})")

    async def _answer(self, body: bytes, session: str, sink: TokenSink | None) -> Mapping[str, Any]:
        """One attempt."""
        if self._sampler is None:
            raise InferenceError("vLLM is not running: start it first")
        stream = None if sink is None else StreamedAnswer(sink)
        status, content = await self._sampler.post(_GENERATE, body, None if stream is None else stream.feed)
        check_status(status, content, session)
        if stream is not None:
            return stream.whole()
        answer: Mapping[str, Any] = orjson.loads(content)
        return answer

    # ---------------------------------------------------------------- weights

    async def update_weights(self, weights: Path, version: int) -> None:
        """Waits for generations in flight, loads the file, drops the caches; later generations carry `version`.

        Raises WeightSyncError when the file does not fit the served model, RunError when the server fails; after the
        latter the engine refuses to sample, since the weights are undefined."""
        if self._client is None or self._broken:
            raise InferenceError(self.failure() or "vLLM is not running: start it first")
        await asyncio.to_thread(check_same, weights, self._shapes)
        async with self._gate.exclusive():
            self._broken = f"version {version} was not loaded to its end"
            await self._control("/pause?mode=wait")
            await self._control("/start_weight_update")
            await self._control("/update_weights", {"update_info": {"path": str(weights.absolute())}})
            await self._control("/finish_weight_update", {"weight_version": str(version)})
            answer = await self._control("/reset_prefix_cache")
            if answer.get("success") is not True:
                raise WeightSyncError(f"vLLM did not drop its prefix cache after loading version {version}")
            await self._control("/resume")
            self._version, self._broken, self._behind = version, "", 0

    async def _control(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """One call of vLLM's control endpoints. Raises RunError."""
        name = path.partition("?")[0]
        try:
            response = await self._post(path, orjson.dumps(body or {}), self.update_timeout_s)
        except httpx.TransportError as error:
            await asyncio.sleep(0.2)
            raise RunError(f"vLLM did not answer {name} ({self._state()}): {error!r}") from error
        if response.status_code != 200:
            tail = self._server.tail(2) if self._server else ""
            raise RunError(f"vLLM refused {name} with {response.status_code}: {reason(response.content)}; {tail}")
        answer: Mapping[str, Any] = orjson.loads(response.content)
        return answer

    async def _post(self, path: str, body: bytes, timeout_s: float) -> httpx.Response:
        if self._client is None:
            raise InferenceError("vLLM is not running: start it first")
        timeout = httpx.Timeout(timeout_s, connect=10.0, pool=None)
        return await self._client.post(path, content=body, headers=_JSON, timeout=timeout)

    def _alive(self) -> bool:
        return self._server is not None and self._server.alive

    def _state(self) -> str:
        if self._server is None:
            return "not started"
        status = self._server.status()
        return status if self._server.alive else f"{status}; {self._server.log} ends: {self._server.tail(2)}"


def _flag(name: str, value: Any) -> list[str]:
    """A command-line option; true and false become `--name` and `--no-name`, null leaves vLLM's default."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
