"""Bash completion of `python -m engine …`: Hydra answers the queries, but its own script knows no `python -m`."""

_SCRIPT = r"""_lego_rl_completion()
{
    local word="${COMP_WORDS[COMP_CWORD]}" python="${COMP_WORDS[0]}"
    [ "${COMP_WORDS[1]}" = -m ] && [ "${COMP_WORDS[2]}" = engine ] || return
    local line="engine ${COMP_LINE#*-m engine}"
    COMPREPLY=($(compgen -W "$(COMP_LINE="$line" "$python" -m engine -sc query=bash 2>/dev/null)" -- "$word"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _lego_rl_completion python python3 .venv/bin/python"""


def install_script() -> str:
    """Shell text for `eval "$(python -m engine -sc install=bash)"`."""
    return _SCRIPT
