"""Unified diffs as data: what git, or `core/patch.py`, writes is read whole, turned round, and applied exactly.

Invariant: `parse` accounts for every line, and `parse(render(files)) == files`; `applied` finds a hunk's lines at the
place that the hunk states: no offset, no fuzz, no white space forgiven. Refuses, naming the line, text that belongs to
no file, hunks that are shorter or longer than they say, paths that `safe_path` refuses: `PatchError`. Binary files and
links are read but can be neither turned round nor applied.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from engine.core.errors import PatchError
from engine.core.patch import difference, safe_path
from engine.core.records import Patch

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_NO_NEWLINE = "\\ No newline at end of file"
_PREFIX = re.compile(r"[abciow]/")
"""What git puts before a path, also with `diff.mnemonicPrefix`."""
_TWO = re.compile(r"([abciow]/.+?) ([abciow]/.+)")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_UNUSUAL = re.compile(r'[\x00-\x1f"\\\x7f]')
_REGULAR = ("100644", "100755", "100664")
_BINARY = re.compile(r"Binary files? (.+) differs?|GIT binary patch")


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """Lines that stand together."""

    old_start: int
    """Number of the first line before, from 1; where no line was, the number of the line ahead of it."""
    new_start: int
    lines: tuple[tuple[str, str], ...]
    """(mark, text): ` `, `-` or `+`, and the line with its line feed, unless the file ends without one."""
    section: str = ""
    """What stands behind the second `@@`, for people."""

    def side(self, mark: str) -> list[str]:
        """The lines before (`-`) or after (`+`)."""
        return [text for kind, text in self.lines if kind in (" ", mark)]


@dataclass(frozen=True, kw_only=True)
class FileDiff:
    """What becomes of one file."""

    old: str | None
    """Path before; None: the file is new."""
    new: str | None
    """Path after; None: the file is deleted."""
    hunks: tuple[Hunk, ...] = ()
    old_mode: str | None = None
    """git's mode (`100755`), where the diff tells it."""
    new_mode: str | None = None
    copied: bool = False
    """Whether `old` stays beside `new`."""
    binary: bool = False
    """Whether the contents are not text; there are no hunks then."""

    @property
    def path(self) -> str:
        """The path that a person would name."""
        return self.new or self.old or ""

    @property
    def plain(self) -> bool:
        """Whether it is a regular text file, before and after."""
        modes = [mode for mode in (self.old_mode, self.new_mode) if mode is not None]
        return not self.binary and all(mode in _REGULAR for mode in modes)


class _Lines:
    """The lines of a diff, and which comes next; split at line feeds alone, since any other mark may be content."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        self._next = 0

    def peek(self, ahead: int = 0) -> str | None:
        place = self._next + ahead
        return self._lines[place] if place < len(self._lines) else None

    def take(self) -> str:
        self._next += 1
        return self._lines[self._next - 1]

    def starts(self, *beginnings: str) -> bool:
        line = self.peek()
        return line is not None and line.startswith(beginnings)

    def wrong(self, problem: str) -> PatchError:
        """The error for the line that was taken last."""
        return PatchError(f"line {self._next}: {problem}")


def parse(text: str) -> tuple[FileDiff, ...]:
    """All files of a diff, in its order. Raises PatchError, which names the line; a diff without any file is none."""
    lines, files = _Lines(text), []
    while (line := lines.peek()) is not None:
        if not line.strip():
            lines.take()
        elif line.startswith("diff --git "):
            files.append(_with_header(lines))
        elif line.startswith("--- "):
            lines.take()
            files.append(_with_hunks(lines, FileDiff(old=_path(line[4:], lines), new=None)))
        elif found := _BINARY.fullmatch(line):
            lines.take()
            path = _safe(found[1] or "", lines)
            files.append(FileDiff(old=path, new=path, binary=True))
        else:
            lines.take()
            more = " (the hunk above says that it has fewer lines)" if files and line[0] in " -+" else ""
            raise lines.wrong(f"{line[:60]!r} belongs to no file{more}")
    if not files:
        raise PatchError("it holds no file")
    return tuple(files)


def _with_header(lines: _Lines) -> FileDiff:
    """A section that begins with `diff --git`: its header tells of modes, renames and what has no lines."""
    old, new = _both_paths(lines.take()[len("diff --git ") :], lines)
    file = FileDiff(old=old, new=new)
    while (line := lines.peek()) is not None:
        key, _, value = _header(line)
        if not key:
            break
        lines.take()
        if key == "old mode":
            file = replace(file, old_mode=value)
        elif key == "new mode":
            file = replace(file, new_mode=value)
        elif key == "new file mode":
            file = replace(file, old=None, new_mode=value)
        elif key == "deleted file mode":
            file = replace(file, new=None, old_mode=value)
        elif key in ("rename from", "copy from"):
            file = replace(file, old=_safe(_unquoted(value), lines), copied=key == "copy from")
        elif key in ("rename to", "copy to"):
            file = replace(file, new=_safe(_unquoted(value), lines))
    if line is not None and _BINARY.fullmatch(line):
        lines.take()
        while line.startswith("GIT") and not lines.starts("diff --git ") and lines.peek() is not None:
            lines.take()
        return replace(file, binary=True)
    if not lines.starts("--- "):
        return file
    said = _path(lines.take()[4:], lines)
    if said != file.old:
        raise lines.wrong(f"the header calls this file {file.old!r}")
    return _with_hunks(lines, file)


_HEADERS = (
    *("old mode", "new mode", "new file mode", "deleted file mode", "rename from", "rename to", "copy from", "copy to"),
    *("similarity index", "dissimilarity index", "index"),
)


def _header(line: str) -> tuple[str, str, str]:
    """(key, blank, value) of a header's line; empty where it is none."""
    key = next((key for key in _HEADERS if line.startswith(key + " ")), "")
    return (key, " ", line[len(key) + 1 :]) if key else ("", "", "")


def _with_hunks(lines: _Lines, file: FileDiff) -> FileDiff:
    """What follows `--- `: the other path, and the hunks."""
    headed = file.new is not None
    if not lines.starts("+++ "):
        raise lines.wrong("no line with `+++ ` follows")
    new = _path(lines.take()[4:], lines)
    if headed and new != file.new:
        raise lines.wrong(f"the header calls this file {file.new!r}")
    if file.old is None and new is None:
        raise lines.wrong("the file is on neither side")
    hunks = []
    while lines.starts("@@"):
        hunks.append(_hunk(lines))
    return replace(file, new=new, hunks=tuple(hunks))


def _hunk(lines: _Lines) -> Hunk:
    found = _HUNK.fullmatch(lines.take())
    if found is None:
        raise lines.wrong("is no head of a hunk (`@@ -1,2 +1,3 @@`)")
    left = {"-": int(found[2] or 1), "+": int(found[4] or 1)}
    told: list[tuple[str, str]] = []
    while any(left.values()) or lines.starts("\\"):
        line = lines.peek()
        if line is None:
            raise lines.wrong(f"the diff ends within a hunk, {left['-']} old and {left['+']} new lines are missing")
        lines.take()
        mark, text = (line[0], line[1:]) if line else (" ", "")  # editors drop the blank of an empty line
        if mark == "\\" and told:
            told[-1] = (told[-1][0], told[-1][1].removesuffix("\n"))
            continue
        if mark not in " -+":
            raise lines.wrong(f"{line[:60]!r} is no line of a hunk, {left['-']} old and {left['+']} new are missing")
        for side in left:
            left[side] -= mark in (" ", side)
        if min(left.values()) < 0:
            raise lines.wrong("the hunk has more lines than its head says")
        told.append((mark, text + "\n"))
    return Hunk(old_start=int(found[1]), new_start=int(found[3]), lines=tuple(told), section=found[5])


# ---------------------------------------------------------------- paths


def _both_paths(text: str, lines: _Lines) -> tuple[str, str]:
    """Of `a/PATH b/PATH`. Without quotes nothing marks where the first ends, unless both are the same; where they are
    not, the lines of a rename follow and put right what is taken here."""
    quoted = _QUOTED.match(text)
    if quoted:
        first, second = quoted[0], text[quoted.end() + 1 :]
    elif text.endswith('"'):
        first, _, second = text.partition(" ")
    else:
        half = (len(text) - 1) // 2
        first, second = text[:half], text[half + 1 :]
        if first[2:] != second[2:] and (found := _TWO.fullmatch(text)):
            first, second = found[1], found[2]
    old, new = _path(first, lines), _path(second, lines)
    if old is None or new is None:
        raise lines.wrong("the header names no path")
    return old, new


def _path(text: str, lines: _Lines) -> str | None:
    """Of `a/PATH`, with or without a time stamp behind a tab; None for `/dev/null`."""
    path = _unquoted(text) if text.startswith('"') else text.partition("\t")[0].removesuffix("\r")
    if path == "/dev/null":
        return None
    if not _PREFIX.match(path):
        raise lines.wrong(f"the path {path[:80]!r} has no a/ or b/ before it")
    return _safe(path[2:], lines)


def _safe(path: str, lines: _Lines) -> str:
    try:
        return safe_path(path)
    except PatchError as error:
        raise lines.wrong(str(error)) from error


def _unquoted(text: str) -> str:
    """git quotes a path that holds control characters, quotes, or bytes beyond ASCII (as octal numbers)."""
    quoted = _QUOTED.match(text)
    if quoted is None:
        return text
    data = b""
    for code, plain in re.findall(r"\\([0-7]{3}|.)|([^\\]+)", quoted[1]):
        number = int(code, 8) if len(code) == 3 else _ESCAPES.get(code, ord(code or "?"))
        data += plain.encode() or bytes([number & 0xFF])
    return data.decode(errors="surrogateescape")


def _quoted(path: str) -> str:
    if _UNUSUAL.search(path) is None:
        return path
    return '"' + _UNUSUAL.sub(lambda found: f"\\{ord(found[0]):03o}", path) + '"'


# ---------------------------------------------------------------- using


def reverse(files: Iterable[FileDiff]) -> tuple[FileDiff, ...]:
    """The diff that undoes a diff. Raises PatchError for a copy or a binary file."""
    return tuple(_reversed(file) for file in files)


def _reversed(file: FileDiff) -> FileDiff:
    if file.copied or file.binary:
        kind = "copied" if file.copied else "binary"
        raise PatchError(f"{file.path}: a {kind} file cannot be turned round")
    return FileDiff(
        old=file.new,
        new=file.old,
        old_mode=file.new_mode,
        new_mode=file.old_mode,
        hunks=tuple(
            Hunk(
                old_start=hunk.new_start,
                new_start=hunk.old_start,
                lines=_removed_first([({"+": "-", "-": "+"}.get(mark, mark), text) for mark, text in hunk.lines]),
                section=hunk.section,
            )
            for hunk in file.hunks
        ),
    )


def _removed_first(lines: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Within each run of changed lines those that go stand ahead of those that come, as every diff has them."""
    told: list[tuple[str, str]] = []
    added: list[tuple[str, str]] = []
    for line in lines:
        if line[0] == "+":
            added.append(line)
            continue
        if line[0] == " ":
            told += added
            added = []
        told.append(line)
    return (*told, *added)


def render(files: Iterable[FileDiff]) -> str:
    """The text of a diff, as git writes it, without hashes."""
    return "".join(_rendered(file) for file in files)


def _rendered(file: FileDiff) -> str:
    old, new = _quoted(f"a/{file.old or file.new}"), _quoted(f"b/{file.new or file.old}")
    lines = [f"diff --git {old} {new}"]
    if file.old is None or file.new is None:
        word, mode = ("new", file.new_mode) if file.old is None else ("deleted", file.old_mode)
        lines = [*lines, f"{word} file mode {mode}"] if mode else []
    else:
        lines += [f"{side} mode {mode}" for side, mode in (("old", file.old_mode), ("new", file.new_mode)) if mode]
        if file.old != file.new:
            word = "copy" if file.copied else "rename"
            lines += [f"{word} from {_quoted(file.old)}", f"{word} to {_quoted(file.new)}"]
    if file.binary:
        lines.append(f"Binary files {old} and {new} differ")
    elif file.hunks or not lines:
        lines.append(f"--- {'/dev/null' if file.old is None else old}")
        lines.append(f"+++ {'/dev/null' if file.new is None else new}")
    text = "".join(line + "\n" for line in lines)
    return text + "".join(_rendered_hunk(hunk) for hunk in file.hunks)


def _rendered_hunk(hunk: Hunk) -> str:
    sizes = len(hunk.side("-")), len(hunk.side("+"))
    head = f"@@ -{hunk.old_start},{sizes[0]} +{hunk.new_start},{sizes[1]} @@{hunk.section}\n"
    return head + "".join(
        mark + (text if text.endswith("\n") else f"{text}\n{_NO_NEWLINE}\n") for mark, text in hunk.lines
    )


def applied(files: Iterable[FileDiff], tree: Mapping[str, tuple[bytes, bool]]) -> Patch:
    """The patch by contents that a diff makes of a tree (as `core.patch.read_tree` gives it).

    Raises PatchError where the tree does not hold what the diff was made against."""
    after = dict(tree)
    found = [(file, _contents(file, tree)) for file in files]
    for paths in ([file.old for file, _ in found if not file.copied], [file.new for file, _ in found]):
        twice = next((path for path in paths if path is not None and paths.count(path) > 1), None)
        if twice is not None:
            raise PatchError(f"{twice}: the diff changes it twice")
    for file, _ in found:
        if file.old is not None and not file.copied:
            del after[file.old]
    for file, data in found:
        if file.new is not None:
            if file.new in after:
                raise PatchError(f"{file.new}: is to be new, and is there already")
            executable = tree[file.old][1] if file.old is not None else False
            after[file.new] = data, file.new_mode == "100755" if file.new_mode else executable
    return difference(tree, after)


def _contents(file: FileDiff, tree: Mapping[str, tuple[bytes, bool]]) -> bytes:
    """What a file holds afterwards."""
    if not file.plain:
        raise PatchError(f"{file.path}: a binary file or a link cannot be made of a diff")
    if file.old is not None and file.old not in tree:
        raise PatchError(f"{file.old}: is not in the tree")
    held = re.findall(rb"[^\n]*\n|[^\n]+", tree[file.old][0]) if file.old is not None else []
    made: list[bytes] = []
    place = 0
    for hunk in file.hunks:
        before = [text.encode(errors="surrogateescape") for text in hunk.side("-")]
        start = hunk.old_start - 1 if before else hunk.old_start
        if start < place or held[start : start + len(before)] != before:
            raise PatchError(f"{file.path}: does not hold the lines of the hunk at line {hunk.old_start}")
        made += held[place:start]
        made += [text.encode(errors="surrogateescape") for text in hunk.side("+")]
        place = start + len(before)
    rest = held[place:]
    if file.new is None and (made or rest):
        raise PatchError(f"{file.path}: is to be deleted, and {len(made) + len(rest)} lines of it would be left")
    return b"".join([*made, *rest])
