"""What runs inside a remote sandbox, by a Python of ours that is mounted there: standard library only, and the few
modules of the project that `MODULES` names."""

MODULES = (
    "engine/__init__.py",
    "engine/core/__init__.py",
    "engine/core/credentials.py",
    "engine/core/errors.py",
    "engine/sandbox/__init__.py",
    "engine/sandbox/enter.py",
    "engine/sandbox/files.py",
    "engine/sandbox/seccomp.py",
    "engine/sandbox/remote/__init__.py",
    "engine/sandbox/remote/within/__init__.py",
    "engine/sandbox/remote/within/archive.py",
    "engine/sandbox/remote/within/command.py",
    "engine/sandbox/remote/within/keeper.py",
    "engine/sandbox/remote/within/processes.py",
)
CODE, TOOLS = "/.lego/code", "/.lego/tools"
"""Where the code and the image that holds our Python are seen."""
USER, HOME = "agent", "/home/agent"
_LIBRARIES = {
    "x86_64": ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
"""Machine → Debian's multiarch folder and the dynamic loader in it."""


def entry(module: str) -> str:
    """The script that containers start: they take no module from where it lies by themselves (`-I`)."""
    return f'import sys\nsys.path.insert(0, "{CODE}")\nfrom {module} import main\nmain(sys.argv[1:])\n'


def interpreter(machine: str) -> tuple[str, ...]:
    """Command that runs the entry by our Python in whatever image, through its own loader and libraries."""
    multiarch, loader = _LIBRARIES[machine]
    libraries, python = f"{TOOLS}/usr/lib/{multiarch}", f"{TOOLS}/usr/bin/python3"
    start = (f"{libraries}/{loader}", "--argv0", python, "--library-path", libraries, python)
    return (*start, "-I", "-S", "-B", f"{CODE}/pod.py")
