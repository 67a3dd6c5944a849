"""Fixtures of the sandbox suites, each test of which meets every runtime whose tools are there, and small models."""

import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from sandbox_cases import make_runtime, specification, task_image

from engine.core.specs import ModelInfo
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime


@pytest.fixture(params=["bubblewrap", pytest.param("podman", marks=pytest.mark.podman)])
def kind(request: pytest.FixtureRequest) -> str:
    problems = make_runtime(request.param).problems()
    if problems:
        pytest.skip(f"{request.param}: {problems[0]}")
    return str(request.param)


@pytest.fixture
async def images() -> DebianImageStore:
    store = DebianImageStore()
    await store.build(task_image(), print)
    return store


@pytest.fixture
async def runtime(kind: str, images: DebianImageStore) -> AsyncIterator[LocalRuntime]:
    made = make_runtime(kind)
    await made.start(images, f"conformance-{kind}")
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def sandbox(runtime: LocalRuntime) -> AsyncIterator[ContainedSandbox]:
    made = await runtime.create(specification())
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
def host_server() -> Iterator[HTTPServer]:
    """A server on all addresses of the host."""
    server = HTTPServer(("0.0.0.0", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    from trainer_cases import write_moe  # torch takes seconds, which the sandbox suites need not wait

    return write_moe(tmp_path_factory.mktemp("moe"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    from trainer_cases import write_dense  # torch takes seconds, which the sandbox suites need not wait

    return write_dense(tmp_path_factory.mktemp("dense"))
