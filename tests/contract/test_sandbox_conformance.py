"""One suite for every runtime: what a command can do, how files travel, and what a sandbox cannot see.

Real sandboxes over the real task image of `configs/tasks`; a runtime whose tools are missing is skipped by name.
"""

import asyncio
import hashlib
import os
import socket
from http.server import HTTPServer
from pathlib import Path

import pytest
from sandbox_cases import ROOT, WORKDIR, own_address, python, shell, specification, task_image

from engine.core.errors import SandboxError
from engine.core.specs import Mount
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime

# ---------------------------------------------------------------- commands


async def test_a_command_has_its_exit_code_and_both_outputs(sandbox: ContainedSandbox) -> None:
    result = await shell(sandbox, "echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert not result.timed_out and not result.oom_killed
    assert (await shell(sandbox, "kill -9 $$")).exit_code == 137


async def test_standard_input_is_given_whole(sandbox: ContainedSandbox) -> None:
    given = os.urandom(1 << 20)
    result = await sandbox.exec(["sha256sum"], environment={}, cwd="/", timeout_s=60, stdin=given)
    assert result.stdout.decode().split()[0] == hashlib.sha256(given).hexdigest()
    assert (await shell(sandbox, "cat")).stdout == b""


async def test_the_environment_is_the_callers_and_nothing_else(
    sandbox: ContainedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "leak")
    result = await sandbox.exec(["env"], environment={"MINE": "a b\nc"}, cwd=WORKDIR, timeout_s=60, stdin=b"")
    text = result.stdout.decode()
    assert "MINE=a b\nc" in text
    names = {line.split("=")[0] for line in text.splitlines() if "=" in line}
    assert names == {"PATH", "HOME", "USER", "FROM_SPEC", "MINE"}


async def test_the_folder_is_the_asked_one_and_the_user_owns_it(sandbox: ContainedSandbox) -> None:
    result = await shell(sandbox, "pwd; whoami; touch here && echo ok; touch ~/there && echo ok", cwd=WORKDIR)
    assert result.stdout.decode().split() == [WORKDIR, "agent", "ok", "ok"]
    assert (await shell(sandbox, "pwd", cwd="/usr")).stdout == b"/usr\n"


async def test_what_cannot_start_is_a_result_like_a_shells(sandbox: ContainedSandbox) -> None:
    async def code(*command: str, cwd: str = WORKDIR) -> int:
        return (await sandbox.exec(command, environment={}, cwd=cwd, timeout_s=60, stdin=b"")).exit_code

    assert await code("no-such-program") == 127
    assert await code("/etc/passwd") == 126
    assert await code("true", cwd="/no/such/folder") == 126


async def test_output_beyond_the_limit_keeps_both_ends(sandbox: ContainedSandbox) -> None:
    result = await shell(sandbox, "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo last")
    assert result.stdout.startswith(b"first\n") and result.stdout.endswith(b"last\n")
    assert b"bytes dropped]" in result.stdout
    assert len(result.stdout) < 65536 + 100


async def test_a_process_left_in_the_background_does_not_hold_the_command(sandbox: ContainedSandbox) -> None:
    result = await shell(sandbox, "sleep 600 & echo started")
    assert result.stdout == b"started\n" and not result.timed_out
    assert "sleep 600" in (await shell(sandbox, "ps -eo args")).stdout.decode()


async def test_a_timeout_kills_the_whole_tree_and_nothing_else(sandbox: ContainedSandbox) -> None:
    await shell(sandbox, "sleep 601 &")
    stubborn = "trap '' TERM INT HUP; (setsid sleep 602 &); setsid sh -c 'sleep 603 & sleep 604' & echo on; sleep 605"
    result = await shell(sandbox, stubborn, timeout_s=4)
    assert result.timed_out and result.exit_code == -1 and result.stdout == b"on\n"
    left = (await shell(sandbox, "ps -eo args")).stdout.decode()
    assert "sleep 601" in left
    assert not any(f"sleep {seconds}" in left for seconds in (602, 603, 604, 605))


async def test_a_cancelled_command_is_killed(sandbox: ContainedSandbox) -> None:
    running = asyncio.create_task(shell(sandbox, "touch begun; sleep 606"))
    while await sandbox.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "sleep 606" not in (await shell(sandbox, "ps -eo args")).stdout.decode()


async def test_commands_run_side_by_side(sandbox: ContainedSandbox) -> None:
    results = await asyncio.gather(*(shell(sandbox, f"echo {number}") for number in range(8)))
    assert [result.stdout for result in results] == [b"%d\n" % number for number in range(8)]


# ---------------------------------------------------------------- files


async def test_files_go_in_and_out(sandbox: ContainedSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/run.sh").write_text("#!/bin/sh\necho hi\n")
    (source / "deep/er/run.sh").chmod(0o755)
    (source / "link").symlink_to("/etc/shadow")
    (source / "ünïcode").write_bytes(b"\xff\x00")
    await sandbox.upload(source, WORKDIR)
    await sandbox.write({"/srv/new/folder/file": b"text", f"{WORKDIR}/deep/er/more": b"more"})
    assert (await shell(sandbox, "deep/er/run.sh; cat /srv/new/folder/file; stat -c %U deep/er/more")).stdout == (
        b"hi\ntextagent\n"
    )
    await shell(sandbox, "echo made > made; rm ünïcode")
    target = tmp_path / "target"
    await sandbox.download(WORKDIR, target)
    assert (target / "made").read_text() == "made\n"
    assert (target / "deep/er/run.sh").stat().st_mode & 0o777 == 0o755
    assert (target / "link").readlink() == Path("/etc/shadow")
    assert not (target / "ünïcode").exists()
    assert await sandbox.read(f"{WORKDIR}/deep/er/more", 3) == b"mor"
    assert await sandbox.read(f"{WORKDIR}/none", 3) is None


async def test_links_are_never_followed(sandbox: ContainedSandbox, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("host")
    await shell(
        sandbox,
        f"ln -s {victim} folder; ln -s {victim}/secret file; ln -s /proc/1/root/etc/passwd magic; "
        "mkdir real; ln -s ../real inner; echo x > real/x; mkfifo pipe",
    )
    for path in ("folder/secret", "file", "magic", "inner/x", "pipe", "real"):
        assert await sandbox.read(f"{WORKDIR}/{path}", 100) is None
    for path in ("folder/new", "inner/new"):
        with pytest.raises(SandboxError, match="link"):
            await sandbox.write({f"{WORKDIR}/{path}": b"planted"})
    await sandbox.write({f"{WORKDIR}/file": b"replaced"})  # the link itself is replaced
    with pytest.raises(SandboxError, match="link"):
        await sandbox.upload(victim, f"{WORKDIR}/folder")
    await sandbox.download(f"{WORKDIR}/folder", tmp_path / "stolen")
    assert list((tmp_path / "stolen").iterdir()) == []
    with pytest.raises(SandboxError, match=r"\.\."):
        await sandbox.read(f"{WORKDIR}/../../etc/passwd", 10)
    await sandbox.download(WORKDIR, tmp_path / "copy")
    assert (tmp_path / "copy/folder").is_symlink() and not (tmp_path / "copy/pipe").exists()
    assert (victim / "secret").read_text() == "host" and [path.name for path in victim.iterdir()] == ["secret"]
    assert (tmp_path / "copy/file").read_text() == "replaced"


@pytest.mark.parametrize("instead", ["ln -s /etc {}", "true", "echo > {}"])
async def test_a_folder_that_was_taken_away_holds_nothing(
    sandbox: ContainedSandbox, tmp_path: Path, instead: str
) -> None:
    place = "/home/agent/work"
    taken = await shell(sandbox, f"mkdir {place}; mv {place} ~/gone; {instead.format(place)}")
    assert taken.exit_code == 0
    await sandbox.kill()
    await sandbox.download(place, tmp_path / "tree")
    assert list((tmp_path / "tree").iterdir()) == []


async def test_a_tree_made_to_break_the_copy_is_copied_without_harm(sandbox: ContainedSandbox, tmp_path: Path) -> None:
    await python(
        sandbox,
        """
        import os
        with open("sparse", "wb") as file: file.truncate(60 << 20)
        open("many0", "w").write("linked")
        for n in range(1, 50): os.link("many0", f"many{n}")
        os.mkdir("closed"); open("closed/in", "w").write("in"); os.chmod("closed", 0)
        for n in range(400): os.mkdir("d"); os.chdir("d")
        """,
    )
    await sandbox.kill()
    copy = tmp_path / "copy"
    await sandbox.download(WORKDIR, copy)
    assert (copy / "sparse").stat().st_size == 60 << 20 and (copy / "sparse").stat().st_blocks < 1000
    assert (copy / "many49").stat().st_ino == (copy / "many0").stat().st_ino
    assert (copy / "closed/in").read_text() == "in"
    assert (copy / "closed").stat().st_mode & 0o777 == 0


async def test_files_survive_the_kill_and_are_gone_after_the_stop(sandbox: ContainedSandbox, tmp_path: Path) -> None:
    await shell(sandbox, "echo kept > kept")
    await sandbox.kill()
    await sandbox.write({f"{WORKDIR}/later": b"later"})
    await sandbox.download(WORKDIR, tmp_path / "after")
    assert (tmp_path / "after/kept").read_text() == "kept\n" and (tmp_path / "after/later").read_text() == "later"
    await sandbox.stop()
    with pytest.raises(SandboxError, match="stopped"):
        await sandbox.read(f"{WORKDIR}/kept", 10)


async def test_mounts_are_read_only(runtime: LocalRuntime, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("tool")
    tmp_path.chmod(0o777)
    mount = Mount(source=tmp_path, target="/opt/agent")
    sandbox = await runtime.create(specification(mounts=(mount,)))
    result = await shell(sandbox, "cat /opt/agent/tool; echo x > /opt/agent/x; echo x > /opt/agent/tool")
    assert result.stdout == b"tool" and result.stderr.count(b"Read-only file system") >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tool"]
    assert (tmp_path / "tool").read_text() == "tool"


# ---------------------------------------------------------------- isolation


async def test_the_user_has_no_rights(sandbox: ContainedSandbox) -> None:
    status = (await shell(sandbox, "cat /proc/self/status")).stdout.decode()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(values[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert values["NoNewPrivs"] == "1" and values["Seccomp"] == "2" and values["Groups"].strip() == ""
    assert set(values["Uid"].split()) == set(values["Gid"].split()) == {"10001"}


async def test_the_kernels_side_doors_are_closed(sandbox: ContainedSandbox) -> None:
    answers = await python(
        sandbox,
        """
        import ctypes, errno, os, socket
        libc = ctypes.CDLL(None, use_errno=True)
        def call(name, *arguments):
            return "ok" if getattr(libc, name)(*arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
        print("userns", call("unshare", 0x10000000))
        print("mount", call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
        print("keyring", call("syscall", 250 if os.uname().machine == "x86_64" else 219, 0, -4, 1))
        for name, family in (("vsock", 40), ("packet", 17)):
            try: socket.socket(family, socket.SOCK_STREAM); print(name, "ok")
            except OSError as error: print(name, errno.errorcode[error.errno])
        print("fork", os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]))
        """,
    )
    assert answers.splitlines() == [
        "userns EPERM",
        "mount EPERM",
        "keyring EPERM",
        "vsock EAFNOSUPPORT",
        "packet EAFNOSUPPORT",
        "fork 0",
    ]


async def test_the_host_is_invisible(sandbox: ContainedSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host")
    result = await shell(sandbox, f"cat {tmp_path}/secret; ls {ROOT}; hostname; ps -eo pid= | wc -l; mount")
    lines = result.stdout.decode().splitlines()
    assert lines[0] == "sandbox"  # neither the file nor the folder gave a line
    assert int(lines[1]) < 10
    assert str(tmp_path) not in result.stdout.decode() and "lowerdir=lower" in result.stdout.decode()
    for path in ("/etc/shadow", "/proc/1/environ", "/proc/kcore", "/proc/sysrq-trigger"):
        assert (await shell(sandbox, f"head -c 1 {path} && echo x > {path}")).exit_code != 0


async def test_nothing_but_loopback_is_reachable(sandbox: ContainedSandbox, host_server: HTTPServer) -> None:
    port = host_server.server_address[1]
    answers = await python(
        sandbox,
        f"""
        import socket
        print(sorted(name for _, name in socket.if_nameindex()))
        print(len(open("/proc/net/route").read().splitlines()))
        for address in ("127.0.0.1", {own_address()!r}, "192.0.2.1", "169.254.169.254"):
            try: socket.create_connection((address, {port}), 5); print("connected")
            except OSError as error: print("closed")
        try: socket.getaddrinfo("example.org", 80); print("resolved")
        except OSError: print("no name")
        """,
    )
    lines = answers.splitlines()
    assert lines[0] == "['lo']" and int(lines[1]) <= 1
    assert lines[2:] == ["closed"] * 4 + ["no name"]
    tried = [f"{address}:{port}" for address in (own_address(), "192.0.2.1", "169.254.169.254")]
    assert sandbox.denied() == [*tried, "example.org"]
    await python(sandbox, "import socket; socket.socket().connect_ex(('192.0.2.2', 80))")
    await sandbox.kill()
    assert sandbox.denied() == ["192.0.2.2:80"]


async def test_a_listener_serves_the_sandbox_from_the_host(sandbox: ContainedSandbox) -> None:
    listener = await sandbox.listen(8080)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, sock=listener)
    async with server:
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/t/1').read().decode())"
        assert await python(sandbox, fetch) == "hello"
        with socket.socket() as outside:  # the same port of the host is another one
            assert outside.connect_ex(("127.0.0.1", listener.getsockname()[1])) != 0
        with pytest.raises(SandboxError, match="8080"):
            await sandbox.listen(8080)


async def test_two_sandboxes_do_not_see_each_other(runtime: LocalRuntime) -> None:
    one, two = await asyncio.gather(runtime.create(specification("one")), runtime.create(specification("two")))
    await shell(one, "echo secret > /tmp/mine; echo secret > /dev/shm/mine; sleep 607 &")
    listener = await one.listen(9000)
    seen = await shell(two, "cat /tmp/mine /dev/shm/mine; ps -eo args; python3 -c 'import socket as s; "
                            "print(s.socket().connect_ex((\"127.0.0.1\", 9000)))'")  # fmt: skip
    listener.close()
    assert b"secret" not in seen.stdout and b"sleep 607" not in seen.stdout
    assert seen.stdout.splitlines()[-1] == b"111"


def test_the_image_holds_nothing_of_this_machine(images: DebianImageStore) -> None:
    root = images.path(task_image())
    for name in ("etc/resolv.conf", "var/cache/apt/archives/lock"):
        assert not (root / name).exists() or (root / name).read_text() == ""
    assert (root / "etc/hostname").read_text() == "sandbox\n"
    for name in ("etc/pip.conf", "root/.config", "run/image-build"):
        assert not (root / name).exists()
    assert root.stat().st_mode & 0o777 == 0o755
