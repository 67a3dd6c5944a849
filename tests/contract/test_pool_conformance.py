"""The sandbox suite against a pool of two podman hosts, each a real service with a state of its own, reached by its
socket alone. What is the same for every runtime is the very test of `test_sandbox_conformance` and `…_endings`."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pool_services import Service, make_pool, problem, services
from sandbox_cases import ROOT, WORKDIR, processes_with, python, shell, specification
from test_sandbox_conformance import (  # noqa: F401
    test_a_cancelled_command_is_killed,
    test_a_command_has_its_exit_code_and_both_outputs,
    test_a_process_left_in_the_background_does_not_hold_the_command,
    test_a_timeout_kills_the_whole_tree_and_nothing_else,
    test_a_tree_made_to_break_the_copy_is_copied_without_harm,
    test_commands_run_side_by_side,
    test_files_go_in_and_out,
    test_files_survive_the_kill_and_are_gone_after_the_stop,
    test_links_are_never_followed,
    test_mounts_are_read_only,
    test_nothing_but_loopback_is_reachable,
    test_output_beyond_the_limit_keeps_both_ends,
    test_standard_input_is_given_whole,
    test_the_environment_is_the_callers_and_nothing_else,
    test_the_folder_is_the_asked_one_and_the_user_owns_it,
    test_the_kernels_side_doors_are_closed,
    test_the_user_has_no_rights,
    test_two_sandboxes_do_not_see_each_other,
    test_what_cannot_start_is_a_result_like_a_shells,
)
from test_sandbox_endings import (  # noqa: F401
    test_a_command_that_runs_when_the_sandbox_is_killed_says_so,
    test_init_survives_everything_that_the_user_sends,
    test_kill_counts_what_outlived_the_last_command,
    test_too_much_memory_kills_the_command_not_the_sandbox,
)

from engine.core.errors import SandboxError
from engine.sandbox.images import DebianImageStore
from engine.sandbox.podman_pool.runtime import PodmanPoolRuntime
from engine.sandbox.remote.inside import RemoteSandbox

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.skipif(bool(problem()), reason=problem() or "podman can be had"),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Service]]:
    with services("one", "two") as made:
        yield made


@pytest.fixture
async def runtime(hosts: list[Service], images: DebianImageStore) -> AsyncIterator[PodmanPoolRuntime]:
    for host in hosts:
        await host.answers()
    made = make_pool(*(host.host for host in hosts))
    await made.start(images, "conformance")
    try:
        yield made
    finally:
        await made.stop()
        assert not any(host.containers() for host in hosts)


@pytest.fixture
async def sandbox(runtime: PodmanPoolRuntime) -> AsyncIterator[RemoteSandbox]:
    made = await runtime.create(specification())
    try:
        yield made
    finally:
        await made.stop()


async def test_a_listener_serves_the_sandbox_over_one_stream(sandbox: RemoteSandbox) -> None:
    listener = await sandbox.listen(8080)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.read()  # the client's way has ended, ours has not
        writer.write(hashlib.sha256(body).hexdigest().encode() + b" " + body[::-1])
        await writer.drain()
        writer.close()

    asks = """
        import hashlib, socket, threading
        failed = []
        def ask(size):
            body = bytes(size % 251 for _ in range(1)) * size
            with socket.create_connection(("127.0.0.1", 8080)) as there:
                there.sendall(body); there.shutdown(socket.SHUT_WR)
                got = b"".join(iter(lambda: there.recv(1 << 16), b""))
            if got != hashlib.sha256(body).hexdigest().encode() + b" " + body[::-1]: failed.append(size)
        threads = [threading.Thread(target=ask, args=(size,)) for size in [0, 1, 5 << 20, *range(1000, 1037)]]
        for each in threads: each.start()
        for each in threads: each.join()
        print(failed)
        """
    async with await asyncio.start_unix_server(answer, sock=listener):
        assert await python(sandbox, asks) == "[]"
        with pytest.raises(SandboxError, match="8080"):
            await sandbox.listen(8080)
    refused = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 9)))"
    assert await python(sandbox, refused) == "111"


async def test_the_relay_is_out_of_the_agents_reach(sandbox: RemoteSandbox) -> None:
    (await sandbox.listen(8080)).close()
    seen = await python(
        sandbox,
        """
        import os, socket
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            if pid != os.getpid() and os.stat(f"/proc/{pid}").st_uid != os.getuid():
                for what in (lambda: os.kill(pid, 9), lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY),
                             lambda: os.readlink(f"/proc/{pid}/root"), lambda: os.listdir(f"/proc/{pid}/fd")):
                    try: print(pid, "reached", what())
                    except PermissionError: pass
        life = socket.socket(socket.AF_UNIX); life.connect("\\0lego-rl-life"); life.settimeout(10); print(life.recv(1))
        for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
            try: socket.socket(family, kind); print("raw")
            except OSError: pass
        try: open("/.lego/ready", "w"); print("written")
        except OSError: pass
        try: os.listdir("/.lego/stage"); print("listed")
        except OSError: pass
        """,
    )
    assert seen == "b''"
    assert (await shell(sandbox, "cat /.lego/ready; echo x > /.lego/code/pod.py")).stdout == b"10001"


async def test_the_host_and_its_files_are_invisible(sandbox: RemoteSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host")
    result = await shell(sandbox, f"cat {tmp_path}/secret; ls {ROOT}; hostname; ps -eo pid= | wc -l")
    lines = result.stdout.decode().splitlines()
    assert lines[0] == "sandbox" and int(lines[1]) < 10
    for path in ("/etc/shadow", "/proc/1/environ", "/proc/kcore", "/proc/sysrq-trigger"):
        assert (await shell(sandbox, f"head -c 1 {path} && echo x > {path}")).exit_code != 0


async def test_a_fork_bomb_does_not_outlive_its_command_and_files_can_be_had(
    sandbox: RemoteSandbox, tmp_path: Path
) -> None:
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: open('/tmp/full', 'w').close()"
    result = await sandbox.exec(["python3", "-c", bomb], environment={}, cwd="/", timeout_s=2, stdin=b"")
    assert result.timed_out
    assert (await shell(sandbox, "ls /tmp/full; rm -f /tmp/full")).stdout == b"/tmp/full\n"
    await shell(sandbox, f'echo kept > kept; python3 -c "{bomb}" >/dev/null 2>&1 &')
    assert await sandbox.kill() >= 1
    await sandbox.download(WORKDIR, tmp_path / "copy")
    assert (tmp_path / "copy/kept").read_text() == "kept\n"


async def test_files_can_be_had_of_a_container_that_was_killed(
    sandbox: RemoteSandbox, hosts: list[Service], tmp_path: Path
) -> None:
    await shell(sandbox, "echo kept > kept; sleep 613 &")
    for host in hosts:
        for name in host.running():
            if not name.endswith("-relay"):
                host.run("kill", name)
    with pytest.raises(SandboxError, match="gone"):
        await shell(sandbox, "true")
    await sandbox.download(WORKDIR, tmp_path / "copy")
    assert (tmp_path / "copy/kept").read_text() == "kept\n"
    assert await sandbox.kill() == 0 and not processes_with("sleep 613")


async def test_a_container_that_is_removed_while_a_command_runs_is_lost(
    sandbox: RemoteSandbox, hosts: list[Service]
) -> None:
    running = asyncio.create_task(shell(sandbox, "touch begun; sleep 614"))
    while await sandbox.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    for host in hosts:
        for name in host.running():
            host.run("rm", "--force", "--time", "0", "--depend", name)
    with pytest.raises(SandboxError, match="ended while a command ran"):
        await running
    with pytest.raises(SandboxError, match="gone"):
        await shell(sandbox, "true")
