"""Captured output: both ends, the mark, and no waiting for writers that stay."""

import asyncio
import os

from engine.sandbox.capture import Capture


async def test_short_output_is_kept_whole() -> None:
    capture = Capture(100, os.getuid())
    os.write(capture.write, b"all of it")
    capture.started()
    assert capture.finish() == b"all of it" == capture.finish()


async def test_long_output_keeps_beginning_and_end() -> None:
    capture = Capture(10, os.getuid())
    for number in range(10):
        os.write(capture.write, b"%d" % number * 4)
        await asyncio.sleep(0)
    assert capture.finish() == b"00001\n[30 bytes dropped]\n89999"


async def test_more_than_a_pipe_holds_is_read_meanwhile() -> None:
    capture = Capture(1 << 20, os.getuid())
    text = os.urandom(500_000)

    def write() -> None:
        sent = 0
        while sent < len(text):
            sent += os.write(capture.write, text[sent:])

    await asyncio.to_thread(write)
    assert capture.finish() == text


async def test_a_writer_that_stays_is_not_waited_for() -> None:
    capture = Capture(100, os.getuid())
    other = os.dup(capture.write)
    os.write(other, b"said before")
    assert capture.finish() == b"said before"
    os.close(other)
