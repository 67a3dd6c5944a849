"""One port for all relays: who holds a sandbox's token reaches that sandbox's socket, nobody else anything."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from engine.core.errors import SandboxError
from engine.sandbox.kubernetes import gateway as kubernetes_gateway
from engine.sandbox.kubernetes.gateway import RelayGateway


@pytest.fixture
async def gateway() -> AsyncIterator[RelayGateway]:
    made = RelayGateway("127.0.0.1", 0)
    await made.start()
    yield made
    await made.stop()
    await made.stop()


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def say(gateway: RelayGateway, line: str) -> Line:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(line.encode())
    return reader, writer


async def relay(gateway: RelayGateway, token: str, answer: str = "bound {port}\n") -> tuple[Line, asyncio.Task[None]]:
    reader, writer = await say(gateway, f"control {token}\n")
    assert await reader.readline() == b"ok\n"

    async def obey() -> None:
        while line := await reader.readline():
            writer.write(answer.format(port=line.decode().split()[1]).encode())

    return (reader, writer), asyncio.create_task(obey())


async def served(gateway: RelayGateway, token: str, port: int, text: bytes) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text + await reader.read(100))
        writer.close()

    return await asyncio.start_unix_server(answer, sock=await gateway.listen(token, port))


async def test_each_token_leads_to_its_own_socket(gateway: RelayGateway) -> None:
    tokens = [gateway.admit(name) for name in ("one", "two")]
    lines = [await relay(gateway, token) for token in tokens]
    servers = [await served(gateway, token, 8080, token[:4].encode()) for token in tokens]
    for token in tokens:
        await gateway.joined(token, 5)
        reader, writer = await say(gateway, f"stream {token} 8080\nhello")
        assert await reader.read() == token[:4].encode() + b"hello"
        writer.close()
    for server in servers:
        server.close()
    for (_, writer), task in lines:
        writer.close()
        task.cancel()


async def test_strangers_get_nothing(gateway: RelayGateway) -> None:
    token = gateway.admit("one")
    (_, control), task = await relay(gateway, token)
    server = await served(gateway, token, 8080, b"secret")
    for line in ("stream 00 8080\nx", f"stream {token} 9999\nx", "GET / HTTP/1.1\r\n\r\n", "control x\n", "\n",
                 "stream\n", f"stream {token}\n", f"stream {token} eighty\n", "x" * 5000):  # fmt: skip
        reader, writer = await say(gateway, line)
        with contextlib.suppress(ConnectionResetError):  # as good: it had not read all of it
            assert await reader.read() == b""
        writer.close()
    gateway.dismiss(token)
    reader, writer = await say(gateway, f"stream {token} 8080\nx")
    assert await reader.read() == b""
    writer.close()
    server.close()
    control.close()
    task.cancel()


async def test_silent_strangers_are_few_and_do_not_stay(gateway: RelayGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_gateway, "_HELLO_S", 0.3)
    silent = [await say(gateway, "") for _ in range(kubernetes_gateway._STRANGERS)]
    await asyncio.sleep(0.05)
    token = gateway.admit("one")
    reader, late = await say(gateway, f"control {token}\n")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""  # one too many of this address
    assert not gateway._relays[token].joined.is_set()
    late.close()
    for reader, writer in silent:
        assert await reader.read() == b""
        writer.close()
    (_, writer), task = await relay(gateway, token)
    writer.close()
    task.cancel()


async def test_a_port_that_cannot_be_had_in_the_pod_is_told(gateway: RelayGateway) -> None:
    token = gateway.admit("one")
    with pytest.raises(SandboxError, match="its relay is gone"):
        await gateway.listen(token, 8080)
    (_, writer), task = await relay(gateway, token, "failed {port} Address already in use\n")
    with pytest.raises(SandboxError, match="port 8080 in one: Address already in use"):
        await gateway.listen(token, 8080)
    writer.close()
    task.cancel()


async def test_a_relay_that_does_not_come_is_told(gateway: RelayGateway) -> None:
    with pytest.raises(SandboxError, match=r"the relay of one does not reach this process: see sandbox\.gateway"):
        await gateway.joined(gateway.admit("one"), 0.01)


async def test_a_port_of_this_machine_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = RelayGateway("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(SandboxError, match=r"set sandbox\.gateway"):
            await made.start()
        await made.stop()
