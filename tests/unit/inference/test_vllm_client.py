"""The client's side of vLLM against a stand-in that drops, hangs, refuses and lies."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.core.contracts import TokenSink
from engine.core.errors import AlignmentError, InferenceError, RunError, WeightSyncError
from engine.core.records import Generation
from engine.core.specs import ModelInfo
from engine.inference.probe import WeightProbe
from engine.inference.vllm_http import VllmServer
from engine.inference.vllm_plugin import PAUSE
from engine.inference.weight_file import check_same, checkpoint_shapes, read_shapes

FAKE = Path(__file__).parents[2] / "fixtures/fake_vllm.py"
INTERPRETER = "name an interpreter that has vLLM, or null for this one"
PROMPT = np.arange(7, dtype=np.int32)


def made(**changes: Any) -> VllmServer:
    options: dict[str, Any] = {
        "python": None,
        "port": None,
        "max_concurrency": 4,
        "tensor_parallel": 1,
        "enforce_eager": True,
        "cpu_kv_cache_gb": 1,
        "gpu_memory_utilization": None,
        "start_timeout_s": 60,
        "request_timeout_s": 60,
        "update_timeout_s": 60,
        "stop_grace_s": 1,
        "probe": WeightProbe(sequences=1, length=8, seed=0, max_abs_dlogp=1e-3),
        "arguments": {},
        "environment": {},
    }
    return VllmServer(**{**options, **changes})


class Fake:
    """A started client of a stand-in server."""

    def __init__(self, engine: VllmServer, model: ModelInfo, calls: Path) -> None:
        self.engine, self.model, self._calls = engine, model, calls

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [(path, body) for path, body in map(json.loads, self._calls.read_text().splitlines())]

    def wait_for(self, path: str) -> None:
        while path not in [called for called, _ in self.calls()]:
            time.sleep(0.01)

    def child(self) -> int:
        server: Any = self.engine._server
        (child,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        return int(child)

    def variables(self) -> dict[str, str]:
        """The environment that the server's process has."""
        entries = Path(f"/proc/{self.child()}/environ").read_text().split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def kill(self) -> None:
        """As the kernel does to a server that takes too much memory; its supervisor lives."""
        os.kill(self.child(), signal.SIGKILL)

    async def sample(self, sink: TokenSink | None = None) -> Generation:
        return await self.engine.generate(
            PROMPT,
            max_tokens=2,
            temperature=0.5,
            top_p=0.75,
            seed=3,
            stop_token_ids=(9,),
            routed_start=2,
            session="trial-1",
            sink=sink,
        )


def checkpoint(folder: Path, layers: int) -> ModelInfo:
    folder.mkdir()
    save_file({"a.weight": np.zeros((2, 3), np.float32)}, str(folder / "model.safetensors"))
    return ModelInfo(
        name="m",
        path=folder,
        renderer="qwen3",
        max_context=64,
        num_layers=layers,
        top_k=min(layers, 2),
        dtype="float32",
    )


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def run(layers: int = 0, behaviours: dict[str, Any] | None = None, **changes: Any) -> AsyncIterator[Fake]:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
        python.chmod(0o755)
        environment = {"FAKE_VLLM": json.dumps(behaviours or {}), "FAKE_VLLM_CALLS": str(tmp_path / "calls")}
        changes = {"environment": environment, **changes}
        model = checkpoint(tmp_path / "model", layers)
        engine = made(python=str(python), **changes)
        await engine.start(model, tmp_path / "logs")
        try:
            yield Fake(engine, model, tmp_path / "calls")
        finally:
            await engine.stop()

    return run


GENERATE = "/inference/v1/generate"


async def test_the_request_says_all_that_decides_the_sample(fake: Callable[..., Any]) -> None:
    async with fake() as server:
        result = await server.sample()
        assert result.token_ids.tolist() == [4, 5] and result.routed_experts is None
        path, body = server.calls()[-1]
        assert path == GENERATE and body["token_ids"] == PROMPT.tolist() and body["model"] == "m"
        assert body["cache_salt"] == "v0"
        assert body["sampling_params"] == {
            "max_tokens": 2,
            "temperature": 0.5,
            "top_p": 0.75,
            "seed": 3,
            "stop_token_ids": [9],
            "ignore_eos": True,
            "logprobs": 0,
            "routed_experts_prompt_start": 2,
            "detokenize": False,
        }


async def test_a_chosen_port_works_as_the_socket_does(fake: Callable[..., Any], unused_tcp_port: int) -> None:
    async with fake(port=unused_tcp_port) as server:
        assert (await server.sample()).token_ids.tolist() == [4, 5]
        (error,) = server.engine.problems()
        assert str(error).startswith(f"inference.port={unused_tcp_port}: the port is taken on 127.0.0.1; choose")


async def test_death_at_start_ends_with_the_last_words(fake: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        async with fake(environment={"FAKE_VLLM": "no JSON"}):
            pass
    log = tmp_path / "logs/vllm.log"
    start, _, end = str(caught.value).partition("; ")
    assert start.startswith("vLLM died at start (exit code 1): json.decoder.JSONDecodeError: ")
    assert end == f"see its log; the keys of inference and of model decide how it starts; its log is {log}"
    assert "Traceback" in log.read_text()


async def test_one_that_never_answers_names_the_key_of_its_patience(fake: Callable[..., Any], tmp_path: Path) -> None:
    way = f"raise inference.start_timeout_s=0.1, or see what it does: {tmp_path / 'logs/vllm.log'}"
    with pytest.raises(RunError, match=rf"^vLLM was not ready after 0\.1 s: .*; {re.escape(way)}$"):
        async with fake(behaviours={"/health": ["drop"]}, start_timeout_s=0.1):
            pass


async def test_a_connection_lost_before_an_answer_is_tried_again(fake: Callable[..., Any]) -> None:
    async with fake(behaviours={GENERATE: ["drop", "drop", "ok"]}) as server:
        assert (await server.sample()).token_ids.tolist() == [4, 5]
        assert [path for path, _ in server.calls()].count(GENERATE) == 3


async def test_a_connection_lost_for_ever_ends_the_trial(fake: Callable[..., Any]) -> None:
    async with fake(behaviours={GENERATE: ["drop"]}) as server:
        with pytest.raises(InferenceError, match=r"trial-1 lost vLLM \(running\)"):
            await server.sample()
        assert [path for path, _ in server.calls()].count(GENERATE) == 3


async def test_no_answer_in_time_and_a_refusal_are_not_tried_again(fake: Callable[..., Any]) -> None:
    refusal = [400, {"error": {"message": "too\nlong", "code": 400}}]
    async with fake(behaviours={GENERATE: ["hang", refusal, "ok"]}, request_timeout_s=0.3) as server:
        with pytest.raises(InferenceError, match="gave trial-1 no answer within"):
            await server.sample()
        with pytest.raises(InferenceError, match="answered trial-1 with 400: too long"):
            await server.sample()
        await server.sample()
        assert [path for path, _ in server.calls()].count(GENERATE) == 3


async def test_tokens_are_handed_over_as_they_come(fake: Callable[..., Any]) -> None:
    async with fake(behaviours={GENERATE: ["ok", "drop", "ok"]}) as server:
        for _ in range(2):
            taken: list[int] = []
            result = await server.sample(taken.extend)
            assert taken == result.token_ids.tolist() == [4, 5]
            assert result.logprobs.tolist() == [-1, -1] and result.finish_reason == "length"
        assert (await server.sample()).token_ids.tolist() == [4, 5]
        asked = [body["stream"] for path, body in server.calls() if path == GENERATE]
        assert asked == [True, True, True, False], "before the first token a lost connection is tried again"


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ("cut", r"trial-1 lost vLLM \(running\)"),
        ("short", "stream ended before the generation did"),
        ("error", "vLLM gave up a generation: the engine broke"),
        ([503, {"error": {"message": "too busy"}}], "vLLM answered trial-1 with 503: too busy"),
    ],
)
async def test_a_stream_that_is_not_whole_is_a_failure(fake: Callable[..., Any], behaviour: Any, told: str) -> None:
    """And is never tried again once a token was handed over."""
    async with fake(behaviours={GENERATE: [behaviour, "ok"]}) as server:
        taken: list[int] = []
        with pytest.raises(InferenceError, match=told):
            await server.sample(taken.extend)
        assert taken == ([4] if isinstance(behaviour, str) else [])
        assert (await server.sample(taken.extend)).token_ids.tolist() == [4, 5]


async def test_a_stream_that_leaves_a_token_out_is_refused(fake: Callable[..., Any]) -> None:
    """As streams with a parser of tool calls do (vllm#27482)."""
    async with fake(behaviours={GENERATE: ["skip"]}) as server:
        with pytest.raises(AlignmentError, match="counted 2 sampled tokens and answered 1"):
            await server.sample(lambda ids: None)


async def test_a_sparse_model_without_routing_stops_the_run(fake: Callable[..., Any]) -> None:
    async with fake(layers=3) as server:
        with pytest.raises(AlignmentError, match="no routed experts where 6 rows are due"):
            await server.sample()


async def test_an_update_goes_through_all_its_steps_in_order(fake: Callable[..., Any]) -> None:
    async with fake() as server:
        await server.engine.update_weights(server.model.path / "model.safetensors", 5)
        assert (await server.sample()).policy_versions.tolist() == [5, 5]
        assert [path for path, _ in server.calls()] == [
            "/init_weight_transfer_engine",
            "/pause?mode=wait",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/reset_prefix_cache",
            "/resume",
            GENERATE,
        ]
        assert server.calls()[-1][1]["cache_salt"] == "v5"


@pytest.mark.parametrize(
    ("path", "behaviour", "error", "said"),
    [
        ("/reset_prefix_cache", [200, {"success": False}], WeightSyncError, "did not drop its prefix cache"),
        ("/update_weights", [500, {"error": "boom"}], RunError, "refused /update_weights with 500: boom"),
        ("/finish_weight_update", "drop", RunError, r"did not answer /finish_weight_update \(running\)"),
    ],
)
async def test_nothing_is_sampled_after_an_update_that_failed(
    fake: Callable[..., Any], path: str, behaviour: Any, error: type[Exception], said: str
) -> None:
    async with fake(behaviours={path: [behaviour, "ok"]}) as server:
        with pytest.raises(error, match=said):
            await server.engine.update_weights(server.model.path / "model.safetensors", 5)
        with pytest.raises(InferenceError, match="weights are undefined"):
            await server.sample()


async def test_a_server_that_died_is_started_again_and_serves_no_older_weights(fake: Callable[..., Any]) -> None:
    async with fake(behaviours={GENERATE: ["hang"]}) as server:
        engine, weights = server.engine, server.model.path / "model.safetensors"
        await engine.update_weights(weights, 3)
        lost = asyncio.create_task(server.sample())
        await asyncio.to_thread(server.wait_for, GENERATE)
        server.kill()
        while not engine.failure():
            await asyncio.sleep(0.01)
        told = r"vLLM ended by itself \(exit code 137, killed by SIGKILL; .*/logs/vllm\.log ends: .*\)"
        assert re.fullmatch(told, engine.failure())
        engine.environment = {**engine.environment, "FAKE_VLLM": "{}"}
        await engine.restart()
        with pytest.raises(InferenceError):
            await lost
        assert engine.failure() == ""
        with pytest.raises(InferenceError, match="started again and has no weights of version 3 yet"):
            await server.sample()
        await engine.update_weights(weights, 3)
        assert (await server.sample()).policy_versions.tolist() == [3, 3]
        assert [path for path, _ in server.calls()].count(GENERATE) == 2


async def test_a_server_that_was_never_started_is_not_started_again() -> None:
    with pytest.raises(RunError, match="never started"):
        await made().restart()


async def test_a_server_without_the_plugin_does_not_start(fake: Callable[..., Any]) -> None:
    refusal = {"/init_weight_transfer_engine": [[500, {"error": {"message": "Invalid weight transfer backend"}}]]}
    with pytest.raises(RunError, match="Invalid weight transfer backend"):
        async with fake(behaviours=refusal):
            pass


async def test_a_cancelled_request_frees_the_way_for_an_update(fake: Callable[..., Any]) -> None:
    async with fake(behaviours={GENERATE: ["hang", "ok"]}) as server:
        task: asyncio.Task[Generation] = asyncio.create_task(server.sample())
        await asyncio.to_thread(server.wait_for, GENERATE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.engine.update_weights(server.model.path / "model.safetensors", 1)


async def test_before_the_start_and_after_the_stop_nothing_is_sampled(fake: Callable[..., Any]) -> None:
    def ask(engine: VllmServer) -> Coroutine[Any, Any, Any]:
        return engine.score(PROMPT)

    with pytest.raises(InferenceError, match="not running"):
        await ask(made())
    async with fake() as server:
        pass
    with pytest.raises(InferenceError, match="not running"):
        await ask(server.engine)


def test_problems_name_key_value_and_way_out() -> None:
    errors = made(python="/nowhere/python", arguments={"max_model_len": 5, "no-enforce-eager": True, "swap-space": 1})
    already = "set already; remove it; model, scale and the other inference keys decide it"
    assert [str(error) for error in errors.problems()] == [
        f"inference.python='/nowhere/python': no such interpreter; {INTERPRETER}",
        f"inference.arguments.max_model_len=5: {already}",
        f"inference.arguments.no-enforce-eager=True: {already}",
    ]
    assert made().problems() == []


@pytest.mark.parametrize(
    ("script", "fault"),
    [("exit 3", "is no Python interpreter (exit code 3)"), ("echo False", "has no vLLM"), ("echo True", "")],
)
def test_an_interpreter_is_asked_before_the_start(tmp_path: Path, script: str, fault: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    told = [str(error) for error in made(python=str(python)).problems()]
    assert told == ([f"inference.python={str(python)!r}: {fault}; {INTERPRETER}"] if fault else [])


@pytest.mark.parametrize("pause", ["soon", "", "-1", "nan", "2"])
def test_a_pause_that_vllm_could_not_take_is_named_before_the_start(
    pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = f"{pause!r}: is no such number; give seconds from 0 to 1, for example 0.0002"
    (error,) = made(environment={PAUSE: pause}).problems()
    assert str(error) == f"inference.environment.{PAUSE}={wrong}"
    monkeypatch.setenv(PAUSE, pause)
    (error,) = made().problems()
    assert str(error) == f"{PAUSE} (environment variable)={wrong}"
    assert made(environment={PAUSE: "0.0002"}).problems() == []


def test_a_folder_too_deep_for_sockets_is_named_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    deepest = "/" + "d" * 39
    monkeypatch.setattr("tempfile.tempdir", deepest)
    assert made().problems() == []
    monkeypatch.setattr("tempfile.tempdir", f"{deepest}d")
    (error,) = made().problems()
    assert str(error) == (
        f"TMPDIR='{deepest}d': vLLM's sockets lie there, and a path of over 40 bytes is too long for them; "
        "set it to a shorter path, for example TMPDIR=/tmp"
    )


@pytest.mark.parametrize("by_port", [False, True])
async def test_what_the_server_leaves_lies_in_a_folder_that_ends_with_it(
    fake: Callable[..., Any], unused_tcp_port: int, by_port: bool
) -> None:
    async with fake(port=unused_tcp_port if by_port else None) as server:
        folder = Path(server.variables()["TMPDIR"])
        assert folder.name.startswith("lego-rl-vllm-") and (folder / ".lock").exists()
        assert server.variables()["VLLM_RPC_BASE_PATH"] == str(folder)
        (folder / "left").touch()
    assert not folder.exists()


def test_a_missing_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (error,) = made().problems()
    assert str(error).startswith("inference.python=None: vLLM is not installed here; run scripts/setup")


def test_the_command_line_carries_free_arguments(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "m", 2)
    arguments = {
        "enable_chunked_prefill": False,
        "quantization": None,
        "hf-overrides": {"a": 1},
        "seed": 4,
        "async": True,
    }
    line = made(arguments=arguments)._command(model)
    text = " ".join(line)
    assert text.endswith('--no-enable-chunked-prefill --hf-overrides {"a": 1} --seed 4 --async')
    assert "--enforce-eager" in line and "--gpu-memory-utilization" not in line
    assert text.startswith(f"{sys.executable} -m vllm.entrypoints.openai.api_server --model {model.path}")


def test_weight_files_are_compared_tensor_by_tensor(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "m", 2)
    served = checkpoint_shapes(model.path)
    assert served == {"a.weight": (2, 3)}
    check_same(model.path / "model.safetensors", served)
    other = tmp_path / "o.safetensors"
    save_file({"a.weight": np.zeros((3, 2), np.float32), "b": np.zeros(1, np.float32)}, str(other))
    with pytest.raises(WeightSyncError, match=r"it has unknown 1 tensors \(b\); it has other shapes for 1 tensors"):
        check_same(other, served)
    for text in (b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", (8).to_bytes(8, "little") + b"notjson!"):
        other.write_bytes(text)
        with pytest.raises(WeightSyncError, match="no whole safetensors file"):
            read_shapes(other)
    with pytest.raises(WeightSyncError, match="no whole safetensors file"):
        read_shapes(tmp_path / "missing")
