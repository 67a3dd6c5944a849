"""One suite for every runtime: what is forked from a warm process is what a cold start is, and as easy to end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandbox_cases import ROOT, SETTINGS, WORKDIR, make_runtime, processes_with, shell, traces
from warm_pieces import descendants, descriptors, run, warm_processes, warm_specification, warm_start

from engine.core.errors import HarnessError, SandboxError
from engine.harness.runtime import interpreter
from engine.sandbox import warm
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime

LOOK = """
import ctypes, json, os, resource, signal, subprocess, sys

ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # as a launcher does: closed to its neighbours

def status(text):
    wanted = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
              "Seccomp_filters", "SigBlk", "SigIgn", "Umask", "Threads", "TracerPid")
    pairs = (line.split(":", 1) for line in text.splitlines())
    return {name: value.split() for name, value in pairs if name in wanted}

child = "cat /proc/self/status; echo =; env -0; echo =; ls /proc/self/fd; echo =; ulimit -a; echo =; pwd; id"
parts = subprocess.run(["/bin/sh", "-c", child], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
parts = parts.split("=\\n", 1)
print(json.dumps({
    "own": status(open("/proc/self/status").read()),
    "child": status(parts[0]), "rest": parts[1],
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in
        ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "user", "uts")},
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"},
    "fds": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
    "kinds": [os.readlink("/proc/self/fd/%d" % number).partition(":")[0] for number in range(3)],
    "oom": open("/proc/self/oom_score_adj").read(), "cgroups": sorted({
        line.split(":")[1] + line.rpartition("/")[2][:7] for line in open("/proc/self/cgroup").read().splitlines()}),
    "session": os.getsid(0) == os.getpid() == os.getpgid(0), "parent": os.getppid(), "cwd": os.getcwd(),
    "root": sorted(os.listdir("/")), "path": sys.path, "flags": list(sys.flags), "environment": sorted(os.environ),
    "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "nice": os.nice(0), "affinity": sorted(os.sched_getaffinity(0)), "priority": os.sched_getscheduler(0),
    "encoding": [sys.stdout.encoding, sys.stdout.line_buffering, sys.getfilesystemencoding()],
}))
"""


@pytest.fixture
async def room(runtime: LocalRuntime) -> AsyncIterator[ContainedSandbox]:
    made = await runtime.create(warm_specification())
    try:
        yield made
    finally:
        await made.stop()


async def vanish(*pids: int) -> None:
    """Wait until processes have ended; whoever inherits them may reap them when it likes."""
    async with asyncio.timeout(30):
        while [pid for pid in pids if is_alive(pid)]:
            await asyncio.sleep(0.01)


async def all_reaped(pid: int) -> None:
    """Wait until a warm process has no descendant, not even a zombie."""
    async with asyncio.timeout(30):
        while descendants(pid):
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_forked_process_and_its_children_are_those_of_a_cold_start(room: ContainedSandbox) -> None:
    files = {"/run/lego/launcher/look.py": LOOK.encode()}
    await room.write(files)
    command = (*interpreter(), "/run/lego/launcher/look.py")
    given = {"GIVEN": "a b\nc"}
    cold = await room.exec(command, environment=given, cwd=WORKDIR, timeout_s=60, stdin=b"")
    forked = await run(
        room, f"import os\nos.environ.clear()\nos.environ.update(environment)\n{LOOK}", environment=given
    )
    assert cold.exit_code == 0, cold.stderr.decode()
    assert forked.exit_code == 0, forked.stderr.decode()
    expected, seen = json.loads(cold.stdout), json.loads(forked.stdout)
    for each in (expected, seen):
        each["environment"] = [name for name in each["environment"] if name != "LC_CTYPE"]  # Python's own addition
    for who in ("own", "child"):  # the warm process's own filter, wider by two calls, stays below the sandbox's
        assert int(seen[who].pop("Seccomp_filters")[0]) == int(expected[who].pop("Seccomp_filters")[0]) + 1
    expected["rest"] = expected["rest"].replace("LC_CTYPE=C.UTF-8\0", "")
    assert seen == expected
    assert seen["own"]["CapBnd"] == ["0" * 16]
    assert seen["own"]["NoNewPrivs"] == ["1"]
    assert seen["fds"] == ["0", "1", "2"]


async def test_streams_exit_codes_and_signals(room: ContainedSandbox) -> None:
    echo = "import sys; data = sys.stdin.buffer.read(); print(len(data)); print('oops', file=sys.stderr)"
    start = warm_start("print('while importing')")
    result = await run(room, echo, stdin=b"x" * 100_000, start=start)
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"100000\n", b"oops\n")
    assert (await run(room, "import os; os._exit(7)")).exit_code == 7
    assert (await run(room, "import os; os.kill(os.getpid(), 9)")).exit_code == 137
    broken = await run(room, "raise ValueError('broken')")
    assert broken.exit_code == 126 and b"broken" in broken.stderr


async def test_what_a_program_cannot_be_forked_from_is_refused(
    room: ContainedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
    with pytest.raises(HarnessError, match="2 threads run after the imports"):
        await run(room, "pass", start=warm_start(thread))
    with pytest.raises(HarnessError, match="hold a descriptor of socket:"):
        await run(room, "pass", start=warm_start("import socket; sys.held = socket.socket()"))
    with pytest.raises(HarnessError, match="ModuleNotFoundError: No module named 'nonesuch'"):
        await run(room, "pass", start=warm_start("import nonesuch"))
    with monkeypatch.context() as patch, pytest.raises(HarnessError, match="not imported within"):
        patch.setattr(warm, "_START_S", 0.3)
        await run(room, "pass", start=warm_start("import time; time.sleep(600)"))
    assert not warm_processes()
    assert (await run(room, "print('well')")).stdout == b"well\n"


async def test_a_trial_that_is_cancelled_while_the_program_is_imported_ends_at_once(
    runtime: LocalRuntime, room: ContainedSandbox
) -> None:
    slow = warm_start("import time; time.sleep(600)")
    waiting = [asyncio.create_task(run(room, "pass", start=slow)) for _ in range(2)]
    async with asyncio.timeout(30):
        while not warm_processes():
            await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 2
    await room.stop()
    await runtime.stop()
    assert not warm_processes()


async def test_a_missing_interpreter_is_the_harnesss_failure(runtime: LocalRuntime, tmp_path: Path) -> None:
    spec = warm_specification()
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = await runtime.create(
        type(spec)(**{**vars(spec), "mounts": (type(spec.mounts[0])(source=empty, target="/opt/agent"),)})
    )
    with pytest.raises(HarnessError, match="No such file or directory"):
        await run(bare, "pass")


async def test_first_users_share_one_start_and_nothing_piles_up(runtime: LocalRuntime) -> None:
    rooms = await asyncio.gather(*(runtime.create(warm_specification()) for _ in range(4)))
    where = "import os; print(os.readlink('/proc/self/ns/net'))"
    first = await asyncio.gather(*(run(sandbox, where) for sandbox in rooms))
    assert len({result.stdout for result in first}) == 4
    (pid,) = warm_processes()
    await all_reaped(pid)
    held, ours = descriptors(pid), len(descriptors(os.getpid()))
    for _ in range(12):
        again = await asyncio.gather(*(run(sandbox, where) for sandbox in rooms))
        assert [result.stdout for result in again] == [result.stdout for result in first]
    many = await asyncio.gather(*(run(rooms[0], f"print({number})") for number in range(8)))
    assert [result.stdout for result in many] == [b"%d\n" % number for number in range(8)]
    await all_reaped(pid)
    assert warm_processes() == [pid]
    assert descriptors(pid) == held
    assert len(descriptors(os.getpid())) <= ours, "fewer is the collector's doing: something of an earlier test went"
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) == 1


async def test_another_environment_is_another_process(room: ContainedSandbox) -> None:
    start = warm_start("global SEEN; SEEN = os.environ.get('GIVEN'), os.getcwd(), os.environ['HOME']")
    source = "import program; print(*program.SEEN)"
    for given in ("one", "two", "one"):
        result = await run(room, source, start=start, environment={"GIVEN": given})
        assert result.stdout.decode().split() == [given, WORKDIR, "/home/agent"]
    assert len(warm_processes()) == 2


async def test_the_warm_process_sees_no_host_no_network_and_nothing_of_a_trial(room: ContainedSandbox) -> None:
    look = (
        "import socket, ctypes; global SEEN; SEEN = [sorted(os.listdir('/')), sorted(os.listdir('/run')), "
        "[name for _, name in socket.if_nameindex()], os.getresuid(), os.getgroups(), "
        "[ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None), ctypes.CDLL(None).unshare(0x20000)], "
        "[os.access(f'/proc/{pid}/' + name, os.R_OK) for pid in (1, os.getppid()) for name in ('root/', 'environ')]]"
    )
    start = warm_start(look)
    secret = "a-key-of-" + "this-trial"
    result = await run(room, f"import program, json; print(json.dumps(program.SEEN)); '{secret}'", start=start)
    root, below_run, interfaces, user, groups, calls, host = json.loads(result.stdout)
    assert set(root) == {"dev", "home", "opt", "proc", "run", "testbed", "tmp"}
    assert set(below_run) == {"lego", "warm"}
    assert interfaces == ["lo"]
    assert (set(user), groups) == ({SETTINGS["uid"]}, [])
    assert calls == [-1, -1], "it mounts nothing and makes no namespace"
    assert host == [False] * 4, "no way through another process into the host's file system"
    (pid,) = warm_processes()
    caps = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Cap" in line)
    assert caps["CapInh"] == caps["CapAmb"] == "0" * 16
    assert caps["CapBnd"] == caps["CapEff"] == f"{1 << 21 | 1 << 18 | 1 << 8:016x}"
    assert not holds(pid, secret.encode())
    assert holds(pid, b"'SEEN'"[1:-1])


def holds(pid: int, wanted: bytes) -> bool:
    """Whether some bytes lie in the memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if "rw" not in rights:
                continue
            low, high = (int(part, 16) for part in span.split("-"))
            memory.seek(low)
            if wanted in memory.read(high - low):
                return True
    return False


async def test_a_trial_sees_and_reaches_its_own_sandbox_alone(runtime: LocalRuntime) -> None:
    mine, other = [await runtime.create(warm_specification()) for _ in range(2)]
    waiting = asyncio.create_task(run(other, "open('begun', 'w'); import time; time.sleep(4); print('unharmed')"))
    while await other.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    attack = """
    import os, signal
    seen = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
    print(len(seen), 1 in seen, os.getppid())
    for pid in [1, os.getppid()]:
        try:
            os.kill(pid, 9); print('killed', pid)
        except OSError as error:
            print(type(error).__name__)
    if os.fork() == 0:
        os.kill(-1, 9)
    os.wait()
    """
    result = await run(mine, textwrap.dedent(attack))
    assert result.exit_code == 137
    (pid,) = warm_processes()
    assert (await waiting).stdout == b"unharmed\n"
    assert (await run(mine, "print('still')")).stdout == b"still\n"
    assert warm_processes() == [pid]
    assert await mine.kill() == 0 and await other.kill() == 0


async def test_timeout_and_cancellation_end_all_that_it_started(room: ContainedSandbox) -> None:
    source = (
        "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '{0}']); subprocess.Popen(['sleep', '{1}']); "
        "open('begun', 'w'); time.sleep(600)"
    )
    assert (await run(room, source.format(620, 621), timeout_s=1.5)).timed_out
    assert not processes_with("sleep 620") and not processes_with("sleep 621")
    await shell(room, "rm begun")
    running = asyncio.create_task(run(room, source.format(622, 623)))
    while await room.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    running.cancel()
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], asyncio.CancelledError)
    assert not processes_with("sleep 622") and not processes_with("sleep 623")
    for delay in (0.0, 0.001, 0.003, 0.01, 0.03):
        early = asyncio.create_task(run(room, "import time; time.sleep(600)"))
        await asyncio.sleep(delay)
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
    assert await room.kill() == 0


async def test_memory_and_processes_are_the_trials_own(runtime: LocalRuntime) -> None:
    greedy, other = [await runtime.create(warm_specification()) for _ in range(2)]
    waiting = asyncio.create_task(run(other, "import time; time.sleep(4); print('unharmed')"))
    grown = await run(greedy, "x = bytearray(600 << 20)")
    assert grown.oom_killed and grown.exit_code == 137
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    assert (await run(greedy, bomb, timeout_s=2)).timed_out
    assert (await waiting).stdout == b"unharmed\n"
    assert not (await run(greedy, "print(1)")).oom_killed
    assert len(warm_processes()) == 1


async def test_a_sandbox_that_is_killed_ends_what_was_forked_into_it(room: ContainedSandbox) -> None:
    running = asyncio.create_task(run(room, "open('begun', 'w'); import time; time.sleep(600)"))
    while await room.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    (pid,) = warm_processes()
    below = descendants(pid)
    await room.kill()
    with pytest.raises(SandboxError, match="ended while a command ran"):
        await running
    await vanish(*below)
    with pytest.raises(SandboxError, match="gone"):
        await run(room, "pass")


async def test_a_warm_process_that_dies_fails_its_trials_and_is_replaced(room: ContainedSandbox) -> None:
    running = asyncio.create_task(run(room, "open('begun', 'w'); import time; time.sleep(600)"))
    while await room.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    (pid,) = warm_processes()
    below = descendants(pid)
    assert len(below) == 2
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="was killed"):
        await running
    await vanish(pid, *below)
    assert (await run(room, "print('again')")).stdout == b"again\n"
    assert warm_processes() != [pid] and len(warm_processes()) == 1


async def test_the_runtimes_stop_ends_the_warm_process(kind: str, images: DebianImageStore) -> None:
    runtime = make_runtime(kind)
    await runtime.start(images, f"warm-stop-{kind}")
    sandbox = await runtime.create(warm_specification("warm-left"))
    assert (await run(sandbox, "print(1)")).exit_code == 0
    assert warm_processes()
    await runtime.stop()
    assert not warm_processes() and not traces("warm-left-")


CRASHING = """
import asyncio, os, sys
from sandbox_cases import make_runtime
from warm_pieces import descendants, run, warm_processes, warm_specification, warm_start
from engine.sandbox.images import DebianImageStore

async def main():
    runtime = make_runtime(sys.argv[1])
    await runtime.start(DebianImageStore(), sys.argv[2])
    sandbox = await runtime.create(warm_specification("warm-orphan"))
    while_importing = sys.argv[3] == "importing"
    start = warm_start("open('/tmp/begun', 'w'); import time; time.sleep(600)" if while_importing else "pass")
    trial = run(sandbox, "open('begun', 'w'); import time; time.sleep(600)", start=start)
    running = asyncio.create_task(trial)
    while not (warm := warm_processes()) or not os.path.exists(f"/proc/{warm[0]}/root/tmp/begun"):
        await asyncio.sleep(0.01)
        if not while_importing and await sandbox.read("/testbed/begun", 1) is not None:
            break
    (pid,) = warm_processes()
    print(pid, *descendants(pid), flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["importing", "running"])
async def test_a_killed_run_leaves_no_warm_process(kind: str, images: DebianImageStore, moment: str) -> None:
    owner = f"warm-crash-{kind}-{os.getpid()}"
    paths = (ROOT, Path(__file__).parent, ROOT / "tests" / "fixtures")
    environment = {**os.environ, "PYTHONPATH": ":".join(str(path) for path in paths)}
    script = [sys.executable, "-c", CRASHING, kind, owner, moment]
    crashed = await asyncio.to_thread(subprocess.run, script, env=environment, capture_output=True, text=True)
    assert crashed.returncode == -9, crashed.stderr
    pids = [int(word) for word in crashed.stdout.split()]
    assert len(pids) == (1 if moment == "importing" else 3), "the warm process, what entered, and the trial"
    await vanish(*pids)
    living = make_runtime(kind)
    await living.start(images, owner)  # removes its sandbox
    await living.stop()
    assert not traces("warm-orphan-")
