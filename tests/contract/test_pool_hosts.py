"""The pool as a whole, over two real podman services: who gets the next sandbox, a host that dies and comes back, runs
that were killed, and images that many wait for at once."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pool_services import Service, make_pool, problem, services
from sandbox_cases import ROOT, WORKDIR, processes_with, shell, specification

from engine.core.errors import SandboxError
from engine.core.specs import Mount
from engine.sandbox.images import DebianImageStore
from engine.sandbox.podman_pool.runtime import PodmanPoolRuntime

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.skipif(bool(problem()), reason=problem() or "podman can be had"),
]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Service]]:
    with services("one", "two") as made:
        yield made


@pytest.fixture
async def hosts(pair: list[Service]) -> list[Service]:
    for host in pair:
        await host.answers()
        assert not host.containers()
    return pair


@asynccontextmanager
async def running(
    images: DebianImageStore, *hosts: dict[str, object], **changes: object
) -> AsyncIterator[PodmanPoolRuntime]:
    made = make_pool(*hosts, **changes)
    await made.start(images, "pool")
    try:
        yield made
    finally:
        await made.stop()


def tasks(host: Service) -> int:
    return sum(not name.endswith("-relay") for name in host.running())


async def test_sandboxes_go_where_the_least_is_and_wait_where_nothing_is_free(
    hosts: list[Service], images: DebianImageStore
) -> None:
    one, two = hosts
    async with running(images, one.host | {"capacity": 1}, two.host | {"capacity": 3}, start_timeout_s=60.0) as runtime:
        made = await asyncio.gather(*(runtime.create(specification(f"s{number}")) for number in range(4)))
        assert (tasks(one), tasks(two)) == (1, 3)
        waiting = asyncio.create_task(runtime.create(specification("late")))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        await made[1].stop()
        await waiting
        assert tasks(one) + tasks(two) == 4
    assert not one.containers() and not two.containers()


async def test_what_another_run_has_there_counts(hosts: list[Service], images: DebianImageStore) -> None:
    one, two = hosts
    async with running(images, one.host) as other:
        await other.create(specification("theirs"))
        async with running(images, one.host, two.host) as runtime:
            await runtime.create(specification("ours"))
            assert (tasks(one), tasks(two)) == (1, 1)
        assert (tasks(one), tasks(two)) == (1, 0)  # and a run's end touches nobody else's


async def test_a_host_that_dies_loses_its_own_sandboxes_alone_and_may_come_back(
    hosts: list[Service], images: DebianImageStore, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = hosts
    async with running(images, one.host, two.host) as runtime:
        lost = await runtime.create(specification("lost"))
        kept = await runtime.create(specification("kept"))
        assert (tasks(one), tasks(two)) == (1, 1)
        dying = asyncio.create_task(shell(lost, "sleep 620"))
        living = asyncio.create_task(shell(kept, f"while ! test -e {WORKDIR}/go; do sleep 0.1; done; echo done"))
        await shell(lost, "true")
        one.kill()
        with pytest.raises(SandboxError, match="lost ended while a command ran"):
            await dying
        with pytest.raises(SandboxError, match="gone"):
            await shell(lost, "true")
        await asyncio.gather(*(runtime.create(specification(f"more{number}")) for number in range(2)))
        assert tasks(two) == 3
        await kept.write({f"{WORKDIR}/go": b""})
        assert (await living).stdout == b"done\n"
        assert sum("host one is set aside" in line for line in caplog.messages) == 1
        while tasks(one):  # its relay ended with the stream, and the task with its relay
            await asyncio.sleep(0.1)
        assert not processes_with("sleep 620")
        one.start()
        while not any("host one answers again" in line for line in caplog.messages):
            await asyncio.sleep(0.1)
        await runtime.create(specification("back"))
        assert tasks(one) == 1
    assert not one.containers() and not two.containers()


async def test_only_where_no_host_answers_nothing_is_made(
    hosts: list[Service], images: DebianImageStore, tmp_path: Path
) -> None:
    nobody = {"name": "nobody", "address": f"unix://{tmp_path}/s", "capacity": None, "unencrypted": False}
    async with running(images, nobody, hosts[0].host) as runtime:
        assert (await shell(await runtime.create(specification()), "echo on")).stdout == b"on\n"
    with pytest.raises(SandboxError, match="nobody: podman on nobody does not answer"):
        await make_pool(nobody).start(images, "pool")


CRASHING = """
import asyncio, json, os, sys
from pool_services import make_pool
from sandbox_cases import shell, specification
from engine.sandbox.images import DebianImageStore

async def main():
    runtime = make_pool(json.loads(sys.argv[1]))
    await runtime.start(DebianImageStore(), "crashing")
    sandbox = await runtime.create(specification("orphan"))
    await shell(sandbox, "sleep 621 &")
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_what_a_killed_run_left_ends_by_itself_and_is_reaped(
    hosts: list[Service], images: DebianImageStore
) -> None:

    one = hosts[0]
    async with running(images, one.host) as living:
        sandbox = await living.create(specification("living"))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(ROOT / "tests/fixtures")]),
        }
        script = [sys.executable, "-c", CRASHING, json.dumps(one.host)]
        crashed = await asyncio.to_thread(subprocess.run, script, env=environment, capture_output=True, text=True)
        assert crashed.returncode == -9, crashed.stderr
        while tasks(one) > 1:  # nobody came to reap: the stream to its relay is broken
            await asyncio.sleep(0.1)
        assert not processes_with("sleep 621") and len(one.containers()) == 4
        assert await make_pool(one.host).reap() == (["orphan"], [])
        assert await make_pool(one.host).reap() == ([], [])  # and never the living
        assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"
    assert not one.containers()


async def test_many_at_once_wait_for_one_upload_and_a_broken_one_leaves_no_image(
    hosts: list[Service], images: DebianImageStore, tmp_path: Path
) -> None:
    one = hosts[0]
    (tmp_path / "tool").write_text("tool")
    mounted = specification(mounts=(Mount(source=tmp_path, target="/opt/agent"),))
    async with running(images, one.host) as runtime:
        before = len(one.run("images", "--quiet").split())
        made = await asyncio.gather(*(runtime.create(mounted) for _ in range(6)))
        assert len(one.run("images", "--quiet").split()) == before + 1
        read = await asyncio.gather(*(shell(each, "cat /opt/agent/tool") for each in made))
        assert [each.stdout for each in read] == [b"tool"] * 6

        async def broken(*_: object) -> AsyncIterator[bytes]:
            yield bytes(4 << 20)
            raise SandboxError("cannot be packed")

        host = runtime._running.hosts[0]  # type: ignore[union-attr]
        with pytest.raises(SandboxError, match="cannot be packed"):
            await host.api.upload("/images/import", {"reference": "localhost/lego-rl/broken:1"}, broken())
        assert not await host.api.exists("images", "localhost/lego-rl/broken:1")


async def test_a_cancelled_or_failed_create_leaves_nothing(hosts: list[Service], images: DebianImageStore) -> None:
    one = hosts[0]
    async with running(images, one.host | {"capacity": 1}) as runtime:
        for delay in (0.0, 0.05, 0.15, 0.3):
            creating = asyncio.create_task(runtime.create(specification("cancelled")))
            await asyncio.sleep(delay)
            creating.cancel()
            done = await asyncio.gather(creating, return_exceptions=True)
            if not isinstance(done[0], BaseException):
                await done[0].stop()
        nothing = Mount(source=Path("/no/such/folder"), target="/opt/agent")
        with pytest.raises(SandboxError, match="/no/such/folder"):
            await runtime.create(specification("failed", mounts=(nothing,)))
        inside_a_file = Mount(source=ROOT / "configs", target="/etc/passwd/agent")
        with pytest.raises(SandboxError):
            await runtime.create(specification("failed", mounts=(inside_a_file,)))
        assert not one.containers()
        await runtime.create(specification("after"))  # the one seat is free again
