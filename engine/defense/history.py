"""What counts as a trace of version control in a tree."""

from pathlib import PurePosixPath

_SYSTEMS = frozenset({".git", ".hg", ".svn", ".bzr", "_darcs", ".jj"})


def is_history(path: str) -> bool:
    """Whether a relative path lies in a repository's data or in a copy of it (`.git.orig`, `.git_backup`)."""
    return any(_is_repository(part.lower()) for part in PurePosixPath(path).parts)


def _is_repository(part: str) -> bool:
    return part in _SYSTEMS or part.startswith((".git.", ".git-", ".git_", ".git~", ".hg."))
