"""The scripts that let bash, zsh and fish complete the command, and where they are installed. `completion` answers them.

Not Typer's, which complete no paths beside other words, and in bash no word with a colon.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError

SHELLS = ("bash", "zsh", "fish")

_SCRIPTS = {
    "bash": """
_podlift_complete() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o default -o bashdefault 2>/dev/null
        else
            COMPREPLY+=("$line")
        fi
    done < <(_PODLIFT_COMPLETE=bash "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -o nosort -F _podlift_complete podlift 2>/dev/null || complete -F _podlift_complete podlift
""",
    "zsh": """#compdef podlift
_podlift() {
    local -a found
    found=("${(@f)$(_PODLIFT_COMPLETE=zsh ${words[1]} "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${found[1]} == :files ]]; then
        _files
    elif [[ -n ${found[1]} ]]; then
        compadd -V podlift -- "${found[@]}"
    fi
}
if [[ ${funcstack[1]} == _podlift ]]; then
    _podlift "$@"
else
    compdef _podlift podlift
fi
""",
    "fish": """
function __podlift_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (env _PODLIFT_COMPLETE=fish $words[1] $words[2..-1] "$current" 2>/dev/null)
    if test "$found[1]" = :files
        __fish_complete_path "$current"
    else
        printf '%s\\n' $found
    end
end
complete -c podlift -f -k -a '(__podlift_complete)'
""",
}


def shell_of(named: str, environ: Mapping[str, str]) -> str:
    """Return the shell that is named, or the user's own."""
    shell = named or environ.get("SHELL", "").rpartition("/")[2]
    if shell in SHELLS:
        return shell
    received = f"Received: {shell!r}. " if shell else ""
    raise InputError(f"Completion needs the name of a shell. {received}Known: {', '.join(SHELLS)}.")


def script(shell: str) -> str:
    """Return the text for a shell."""
    return _SCRIPTS[shell].lstrip("\n")


def install(shell: str, home: Path, environ: Mapping[str, str]) -> list[str]:
    """Write the script of a shell to its place, and return the changes."""
    if shell == "fish":
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return [_write(config / "fish" / "completions" / "podlift.fish", script(shell))]
    if shell == "zsh":
        folder, start = home / ".zfunc", Path(environ.get("ZDOTDIR") or home) / ".zshrc"
        lines = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
        return [_write(folder / "_podlift", script(shell)), *_added(start, lines)]
    path = home / ".bash_completions" / "podlift.sh"
    return [_write(path, script(shell)), *_added(home / ".bashrc", f"source {shlex.quote(str(path))}")]


def _write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _added(path: Path, line: str) -> list[str]:
    """Add a line to the end of a file, unless it is there already; all else of it, in any encoding, stays as it is."""
    there, new = path.read_bytes() if path.exists() else b"", os.fsencode(line)
    if new in there.splitlines():
        return []
    with path.open("ab") as file:
        file.write((b"" if not there or there.endswith(b"\n") else b"\n") + new + b"\n")
    return [f"one line of {path}"]
