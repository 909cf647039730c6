"""`mirrormq completion SHELL` prints a script; the script asks `mirrormq __complete` for proposals.

Guarantee: a script holds no names of its own, so it stays right when commands come and go.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from mirrormq.ctl.complete import SHELLS, proposals

PROGRAMS = "mirrormq mirrormqctl"
USAGE = """\
usage: mirrormq completion bash|zsh|fish

Print a script that completes commands, options and names of queues, virtual hosts, users and nodes.

  bash   source <(mirrormq completion bash)          in ~/.bashrc
  zsh    source <(mirrormq completion zsh)           in ~/.zshrc, after compinit
  fish   mirrormq completion fish | source           in ~/.config/fish/config.fish

It serves mirrormq and mirrormqctl, and RabbitMQ's names if `mirrormq shims` has written them: give those
after the shell, such as `mirrormq completion bash rabbitmqctl rabbitmqadmin`.
"""
BREAKS = "\"'@><=;|&(:"
"""Where bash ends a word (COMP_WORDBREAKS) although our words go on."""

_SCRIPTS = {
    "bash": """\
# bash: completion of {programs}
_mirrormq_complete() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}"
    mapfile -t COMPREPLY < <("$1" __complete bash "$current" "${{COMP_LINE:0:COMP_POINT}}" 2>/dev/null)
    if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace; fi
}}
complete -o default -F _mirrormq_complete {programs}
""",
    "zsh": """\
#compdef {programs}
_mirrormq_complete() {{
    local -a found
    found=("${{(@f)$("$words[1]" __complete zsh "" "${{(j: :)words[1,CURRENT]}}" 2>/dev/null)}}")
    found=(${{found:#}})
    if (( ${{#found}} )); then compadd -- "${{found[@]}}"; else _files; fi
}}
compdef _mirrormq_complete {programs}
""",
    "fish": """\
# fish: completion of {programs}
function __mirrormq_complete
    set -l program (commandline -opc)[1]
    set -l found ($program __complete fish "" (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
for program in {programs}
    complete -c $program -f -a '(__mirrormq_complete)'
end
""",
}


def main(argv: Sequence[str]) -> int:
    """Print the script of a shell."""
    words = list(argv)
    if not words or words[0] in ("--help", "-h"):
        sys.stdout.write(USAGE)
        return 0 if words else 64
    if words[0] not in SHELLS or not all(re.fullmatch(r"[\w.-]+", word) for word in words[1:]):
        sys.stderr.write(f"mirrormq completion: there are scripts for {', '.join(SHELLS)}.\n")
        return 64
    sys.stdout.write(script(words[0], words[1:]))
    return 0


def script(shell: str, more: Sequence[str] = ()) -> str:
    """The script of a shell, for our commands and some more."""
    return _SCRIPTS[shell].format(programs=" ".join([PROGRAMS, *more]))


def complete(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Answer a script: SHELL, the word as the shell sees it, and the line up to the cursor."""
    shell, seen, line = argv
    current, found = proposals(line, os.environ if environment is None else environment)
    if shell == "bash":
        found = [_for_bash(word, current, seen) for word in found]
    sys.stdout.write("".join(f"{word}\n" for word in found))
    return 0


def _for_bash(word: str, current: str, seen: str) -> str:
    """bash puts a proposal in place of what it takes for the word, which may begin later than ours."""
    tail = "" if seen and seen[-1] in BREAKS else seen
    # What bash sees is as typed, ours is without quotes: only if they agree anything is cut off.
    cut = len(current) - len(tail) if current.endswith(tail) else 0
    return re.sub(r"([^\w@%+=:,./^-])", r"\\\1", word[cut:])
