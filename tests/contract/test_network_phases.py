"""What a sandbox reaches in which phase: what the list of the phase names, and nothing else, whoever asks how.

Real sandboxes on every runtime, a real server of this machine, real programs. Names have their addresses from the
test, since no name server answers here.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from network_cases import Host, background, has_ipv6, host, lists, reach, said
from sandbox_cases import make_runtime, own_address, python, shell, specification

from engine.core.errors import SandboxError
from engine.core.specs import Phase
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.network.sidecar import NOBODY

HOSTS = {
    "mirror.test": ["127.0.0.1"],
    "one.below.test": ["127.0.0.1"],
    "rebound.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "hidden.test": ["::ffff:127.0.0.1", "64:ff9b::7f00:1"],
}


@asynccontextmanager
async def made(
    kind: str, images: DebianImageStore, phase: Phase = "setup", **phases: Sequence[str]
) -> AsyncIterator[ContainedSandbox]:
    runtime = make_runtime(kind, network=lists(**phases))
    runtime._hosts = HOSTS
    await runtime.start(images, f"phases-{kind}")
    try:
        sandbox = await runtime.create(specification(phase=phase))
        yield sandbox
        await sandbox.stop()
    finally:
        await runtime.stop()


@pytest.fixture
def box() -> str:
    """The runtime of the tests of what is the same for both."""
    problems = make_runtime("bubblewrap").problems()
    if problems:
        pytest.skip(f"bubblewrap: {problems[0]}")
    return "bubblewrap"


@pytest.fixture
async def server() -> AsyncIterator[Host]:
    async with host() as running:
        yield running


async def test_what_the_list_names_is_reached_and_all_else_is_found(
    kind: str, images: DebianImageStore, server: Host
) -> None:
    port = server.port
    allowed = [f"127.0.0.1:{port}", f"mirror.test:{port} private", f"*.below.test:{port} private", "192.0.2.9:9"]
    async with made(kind, images, setup=allowed) as sandbox:
        places = [("127.0.0.1", port), ("mirror.test", port), ("one.below.test", port), ("MIRROR.test", port)]
        assert await reach(sandbox, *places) == ["heard hello\n"] * 4
        refused = [
            ("below.test", port), ("evil.test", port), ("127.0.0.2", port), ("192.0.2.1", port),
            (own_address(), port), ("mirror.test", port + 1), ("192.0.2.9", port), ("198.18.99.1", port)]  # fmt: skip
        assert not [answer for answer in await reach(sandbox, *refused) if "heard" in answer]
        assert sorted(sandbox.denied()) == sorted([
            f"mirror.test:{port + 1}", "below.test", "evil.test", f"192.0.2.1:{port}", f"{own_address()}:{port}",
            f"192.0.2.9:{port}", f"198.18.99.1:{port}"])  # fmt: skip
        assert sandbox.denied() == []
        await sandbox.phase("agent")
        assert sandbox.denied() == []
        assert [line.partition(" ")[0] for line in sandbox.reached()] == [
            f"127.0.0.1:{port}", f"mirror.test:{port}", f"one.below.test:{port}"]  # fmt: skip
        assert sandbox.reached() == []


async def test_a_name_is_looked_up_outside(box: str, images: DebianImageStore) -> None:
    """By the process that has no rights any more, with this machine's own resolver."""
    name = socket.gethostname().lower()
    try:
        socket.getaddrinfo(name, 1, socket.AF_INET)
    except OSError:
        pytest.skip("this machine does not know its own name")
    async with host("0.0.0.0") as server:
        async with made(box, images, setup=[f"{name}:{server.port} private"]) as sandbox:
            assert await reach(sandbox, (f"{name}.", server.port)) == ["heard hello\n"]
        async with made(box, images, setup=[f"{name}:{server.port}"]) as sandbox:
            assert "heard" not in (await reach(sandbox, (f"{name}.", server.port)))[0]
            assert sandbox.denied()[0].startswith(f"{name}:{server.port} at ")


async def test_a_name_reaches_what_it_may_stand_for_and_no_more(
    box: str, images: DebianImageStore, server: Host
) -> None:
    port = server.port
    allowed = [
        f"rebound.test:{port}",
        f"metadata.test:{port} private",
        f"hidden.test:{port}",
        f"nowhere.invalid:{port}",
    ]
    async with made(box, images, agent=allowed, phase="agent") as sandbox:
        names = ("rebound.test", "metadata.test", "hidden.test", "nowhere.invalid")
        answers = await reach(sandbox, *((name, port) for name in names))
        assert not [answer for answer in answers if "heard" in answer] and not server.open
        assert sandbox.denied() == [
            f"rebound.test:{port} at 127.0.0.1",
            f"metadata.test:{port} at 169.254.169.254",
            f"hidden.test:{port} at ::ffff:7f00:1",
        ]


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_ipv6_is_held_back_and_let_through_alike(box: str, images: DebianImageStore) -> None:
    async with host("::1") as server, made(box, images, setup=[f"[::1]:{server.port}"]) as sandbox:
        assert await reach(sandbox, ("::1", server.port)) == ["heard hello\n"]
        answers = await reach(sandbox, ("2001:db8::7", server.port), ("fe80::1%lo", server.port), ("::2", 9))
        assert not [answer for answer in answers if "heard" in answer]
        assert f"[2001:db8::7]:{server.port}" in sandbox.denied()
        await sandbox.phase("agent")
        assert "heard" not in (await reach(sandbox, ("::1", server.port)))[0]


_ASKS = """
    import socket, struct
    def question(name, kind):
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        return struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)
    def told(reply):
        number, flags, _, answers, _, _ = struct.unpack_from("!HHHHHH", reply)
        assert number == 7 and flags & 0x8000
        return f"{flags & 15} {socket.inet_ntoa(reply[-4:]) if answers else '-'}"
    def datagram(server, name, kind):
        with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.settimeout(20)
            asked.connect((server, 53))
            asked.send(question(name, kind))
            return told(asked.recv(4096))
    def stream(server, name, kind):
        with socket.create_connection((server, 53), 20) as asked:
            message = question(name, kind)
            asked.sendall(struct.pack("!H", len(message)) + message)
            size, = struct.unpack("!H", asked.recv(2))
            return told(asked.recv(size))
    for ask in (datagram, stream):
        for name, kind in (("mirror.test", 1), ("mirror.test", 28), ("mirror.test", 16), ("evil.test", 1),
                           ("evil.test", 28), (ask.__name__ + ".secret.test", 16)):
            print(ask("192.0.2.53", name, kind))
    if ipv6:
        print(datagram("2001:db8::53", "mirror.test", 1))
"""


async def test_questions_for_names_stay_on_this_machine(box: str, images: DebianImageStore) -> None:
    async with made(box, images, setup=["mirror.test:443"]) as sandbox:
        lines = (await python(sandbox, f"    ipv6 = {has_ipv6()}{_ASKS}")).splitlines()
        assert lines[:12] == ["0 198.18.0.1", "0 -", "0 -", "3 -", "3 -", "3 -"] * 2
        assert lines[12:] == ["0 198.18.0.1"] * has_ipv6()
        assert sorted(sandbox.denied()) == ["datagram.secret.test", "evil.test", "stream.secret.test"]
        await sandbox.phase("agent")
        answer = await shell(sandbox, "getent hosts mirror.test || echo nothing")
        assert answer.stdout == b"nothing\n" and sandbox.denied() == ["mirror.test"]


_HOLDS = """
    import socket, sys
    idle, half = (socket.create_connection(("127.0.0.1", {port}), 20) for _ in range(2))
    half.sendall(b"half\\n")
    print(half.recv(64), flush=True)
    half.shutdown(socket.SHUT_WR)
    for one in (idle, half):
        one.settimeout(50)
    idle.sendall(b"idle\\n")
    print(idle.recv(64), flush=True)
    for one in (idle, half):
        try:
            print(one.recv(64), flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
    try:
        idle.sendall(b"late\\n")
        print("sent", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
    try:
        socket.create_connection(("127.0.0.1", {port}), 20)
        print("connected", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("agent", [False, True])
async def test_no_connection_survives_a_switch(kind: str, images: DebianImageStore, agent: bool, server: Host) -> None:
    """Nor does it where both phases reach the same place."""
    place = [f"127.0.0.1:{server.port}"]
    async with made(kind, images, setup=place, agent=place if agent else []) as sandbox:

        async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server.open.append(writer)
            writer.write(b"hello " + await reader.read(64))

        server.serve = quiet  # type: ignore[method-assign]
        await background(sandbox, _HOLDS.format(port=server.port))
        assert await said(sandbox, 2) == ["b'hello half\\n'", "b'hello idle\\n'"]
        way_out = sandbox.network.way_out
        assert way_out is not None and len(server.open) == 2
        await sandbox.phase("agent")
        assert not Path(f"/proc/{way_out.pid}").exists()
        for writer in server.open:
            writer.write(b"after the switch")
        assert (await said(sandbox, 6))[2:] == [
            "ConnectionResetError", "ConnectionResetError", "BrokenPipeError", "ConnectionRefusedError"]  # fmt: skip
        assert b"late" not in server.heard
        if agent:  # from the next command on
            assert "heard" not in (await reach(sandbox, ("127.0.0.2", server.port)))[0]
            other = sandbox.network.way_out
            assert other is not None and other.pid != way_out.pid
        else:
            await shell(sandbox, "true")
            assert sandbox.network.way_out is None


async def test_names_keep_their_addresses_in_a_later_phase(box: str, images: DebianImageStore) -> None:
    """A program that remembers what it was told must not be led to another name's place."""
    async with made(box, images, setup=["*.a.test:1"], agent=["*.a.test:1", "b.test:1"]) as sandbox:
        ask = "import socket; print(*(socket.gethostbyname(name) for name in {names!r}))"
        first = await python(sandbox, ask.format(names=("x.a.test", "y.a.test")))
        await sandbox.phase("agent")
        assert (await python(sandbox, ask.format(names=("b.test", "y.a.test", "x.a.test")))).split() == [
            "198.18.0.3", *reversed(first.split())]  # fmt: skip


async def test_what_was_on_its_way_is_dropped(box: str, images: DebianImageStore, server: Host) -> None:
    """What a program had sent, and the world had not taken yet, does not go on after the switch."""
    taken = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.open.append(writer)
        await taken.wait()
        try:
            while piece := await reader.read(1 << 16):
                server.heard += piece
        except OSError:
            pass
        server.heard += b"END"

    server.serve = slow  # type: ignore[method-assign]
    async with made(box, images, setup=[f"127.0.0.1:{server.port}"]) as sandbox:
        send = f"""
            import socket
            there = socket.create_connection(("127.0.0.1", {server.port}), 20)
            there.settimeout(1)
            total = 0
            try:
                while True: total += there.send(b"x" * 65536)
            except OSError: pass
            print(total)
        """
        sent = int(await python(sandbox, send))
        await sandbox.phase("agent")
        taken.set()
        async with asyncio.timeout(20):
            while not server.heard.endswith(b"END"):
                await asyncio.sleep(0.01)
        assert len(server.heard) < sent


async def test_a_dead_way_out_closes_the_network_and_is_told(kind: str, images: DebianImageStore, server: Host) -> None:
    place = [f"127.0.0.1:{server.port}"]
    async with made(kind, images, agent=place, phase="agent") as sandbox:
        assert await reach(sandbox, ("127.0.0.1", server.port)) == ["heard hello\n"]
        way_out = sandbox.network.way_out
        assert way_out is not None
        await background(sandbox, _HOLDS.format(port=server.port))
        await said(sandbox, 2)
        os.kill(way_out.pid, signal.SIGKILL)
        lines = await said(sandbox, 6)
        assert [lines[2], *lines[4:]] == ["ConnectionResetError", "BrokenPipeError", "ConnectionRefusedError"]
        with pytest.raises(SandboxError, match="through which it reached the network"):
            await shell(sandbox, "true")
        with pytest.raises(SandboxError, match="through which it reached the network"):
            await sandbox.kill()


async def test_one_that_does_not_answer_is_killed_and_told(
    box: str, images: DebianImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.sandbox.network.way_out._END_S", 0.2)
    async with made(box, images, setup=["192.0.2.1:9"]) as sandbox:
        await shell(sandbox, "true")
        way_out = sandbox.network.way_out
        assert way_out is not None
        os.kill(way_out.pid, signal.SIGSTOP)
        with pytest.raises(SandboxError, match="did not answer"):
            await sandbox.phase("agent")
        assert not Path(f"/proc/{way_out.pid}").exists()
        with pytest.raises(SandboxError, match="did not answer"):
            await shell(sandbox, "true")


async def test_many_connections_at_once(box: str, images: DebianImageStore, server: Host) -> None:
    async with made(box, images, setup=[f"mirror.test:{server.port} private"]) as sandbox:
        script = f"""
            import socket
            there = [socket.create_connection(("mirror.test", {server.port}), 30) for _ in range(200)]
            for number, one in enumerate(there): one.sendall(f"{{number:04}}".encode() * 5000)
            for one in there: one.shutdown(socket.SHUT_WR)
            def whole(one):
                text = b""
                while piece := one.recv(65536): text += piece
                return text.replace(b"heard ", b"")
            print(sum(whole(one) == f"{{number:04}}".encode() * 5000 for number, one in enumerate(there)))
        """
        assert await python(sandbox, script) == "200"
        assert sandbox.denied() == []
        await sandbox.kill()
        (told,) = sandbox.reached()
        assert told.startswith(f"mirror.test:{server.port} (200 connections, 4000000 bytes sent, 4")


async def test_the_way_out_has_no_rights_and_the_sandbox_does_not_see_it(
    kind: str, images: DebianImageStore, server: Host
) -> None:
    async with made(kind, images, agent=[f"127.0.0.1:{server.port}"], phase="agent") as sandbox:
        seen = await shell(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -l /proc/self/fd")
        assert len((await shell(sandbox, "cat /proc/net/unix")).stdout.splitlines()) == 1  # its header: no socket
        way_out = sandbox.network.way_out
        assert way_out is not None
        assert "sidecar" not in seen.stdout.decode() and "socket:" not in seen.stdout.decode()
        process = Path(f"/proc/{way_out.pid}")
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
        assert status["Uid"].split() == status["Gid"].split() == [str(NOBODY)] * 4
        assert status["Groups"].strip() == "" and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
        assert {int(status[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert (process / "ns/net").readlink() == Path("/proc/self/ns/net").readlink()
        targets = [str(path.readlink()) for path in (process / "fd").iterdir()]
        plain = [one for one in targets if not one.startswith(("socket:", "anon_inode:", "pipe:", "/dev/null"))]
        assert [one for one in plain if not one.startswith("/tmp/")] == []  # what it says goes into a nameless file


async def test_a_sandbox_without_lists_has_no_way_out(
    box: str, images: DebianImageStore, server: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("engine.sandbox.network.way_out.WayOut.open", never)
    async with made(box, images, phase="agent") as sandbox:
        assert "heard" not in (await reach(sandbox, ("127.0.0.1", server.port)))[0]
    async with made(box, images, setup=[f"127.0.0.1:{server.port}"], phase="grade") as sandbox:
        assert "heard" not in (await reach(sandbox, ("127.0.0.1", server.port)))[0]


async def test_the_models_port_stays_the_models(box: str, images: DebianImageStore, server: Host) -> None:
    async with made(box, images, agent=["192.0.2.1:8080", "127.0.0.0/8:8080"], phase="agent") as sandbox:
        await shell(sandbox, "true")
        listener = await sandbox.listen(8080)
        model = await asyncio.start_server(server.serve, sock=listener)
        assert await reach(sandbox, ("127.0.0.1", 8080)) == ["heard hello\n"]
        assert "heard" not in (await reach(sandbox, ("127.0.0.2", 8080)))[0]
        model.close()


async def test_nothing_is_left_of_a_way_out(box: str, images: DebianImageStore, server: Host) -> None:
    async with made(box, images, setup=[f"127.0.0.1:{server.port}"]) as sandbox:
        await shell(sandbox, "true")
        way_out = sandbox.network.way_out
        assert way_out is not None and way_out.alive
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        await sandbox.kill()
        assert not Path(f"/proc/{way_out.pid}").exists()
        assert len(list(Path("/proc/self/fd").iterdir())) < descriptors
        assert sandbox.denied() == []
    assert not Path(f"/proc/{way_out.pid}").exists()
