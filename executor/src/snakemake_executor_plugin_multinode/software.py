"""The software of jobs: the shell lines and the words before a command that a site's modules, conda and container need."""

from __future__ import annotations

import functools
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from snakemake_executor_plugin_multinode.site import Site

WRAPPER = "MULTINODE_WRAPPER"
"""Environment variable by which a job's command learns how what it starts on other nodes gets into the same image."""
SETUP_FAILED = 78
"""Exit status of a job whose set-up failed: EX_CONFIG of sysexits.h."""

# A batch job's shell is no login shell, and may not have the function yet (Environment Modules, Lmod).
FIND_MODULE = """\
type module >/dev/null 2>&1 || for init in "$MODULESHOME/init/bash" /etc/profile.d/modules.sh /etc/profile.d/lmod.sh \
/usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    [ -r "$init" ] && . "$init" && break
done || true"""


def python_of(site: Site) -> str | None:
    """The Python of jobs where it is not the driver's; a word that the job's own PATH explains."""
    if site.container is not None:
        return site.container.python
    return "python" if site.conda is not None else None


def setup_lines(site: Site, conda_exe: str | None) -> list[str]:
    """Shell commands that load modules and activate conda; `conda_exe` is used where the job's PATH has no conda."""
    lines = [FIND_MODULE, *(f"module load {shlex.quote(name)}" for name in site.modules)] if site.modules else []
    if site.conda is not None:
        conda = f"$(command -v conda || echo {shlex.quote(conda_exe or 'conda')})"
        lines += [f'eval "$("{conda}" shell.bash hook)"', f"conda activate {shlex.quote(site.conda)}"]
    return lines


def container_words(site: Site, folder: Path) -> list[str]:
    """Words before a command that runs in the site's image; none without one. `folder` is the project's.

    ValueError for a folder that cannot be bound.
    """
    container = site.container
    if container is None:
        return []
    if any(character in str(folder) for character in ",:$"):
        raise ValueError(f"a container cannot have the folder {folder}: its path holds one of `,:$`; move the folder")
    named = container.image
    image = named if "://" in named or named.startswith("$") else str(folder / named)
    binds = [word for place in (str(folder), *container.bind) for word in ("--bind", place)]
    return [container.command, "exec", *container.options, *binds, image]


def shell_line(words: Sequence[str]) -> str:
    """Words as a shell reads them; `$NAME` in a word stands for the job's own variable."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if "$" not in word:
        return shlex.quote(word)
    escaped = "".join(f"\\{character}" if character in '"`\\' else character for character in word)
    return f'"{escaped}"'


def hand_on(words: Sequence[str]) -> list[str]:
    """Shell commands that put into the environment how a command on another node gets into the image, if there is one.

    The first word is looked up: the image has another PATH.
    """
    if not words:
        return []
    lookup = f"command -v {_quoted(words[0])}"
    return [f"{lookup} >/dev/null", f"""export {WRAPPER}="'$({lookup})'"{shlex.quote(" " + shell_line(words[1:]))}"""]


def checked(commands: Sequence[str]) -> str:
    """Shell commands, each of which calls `setup_failed STATUS COMMAND` where it fails. ValueError where one is no shell."""
    return "\n".join(map(_checked, commands))


@functools.lru_cache(maxsize=64)
def _checked(command: str) -> str:
    text = f"{{ {command}\n}} || setup_failed $? {shlex.quote(command)}"
    if subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode != 0:
        raise ValueError(f"bash cannot read a command of `scheduler.setup`: {command!r}")
    return text
