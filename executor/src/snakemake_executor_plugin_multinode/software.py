"""The software of jobs, from a site's `modules`, `conda`, `container`: lines of shell, words before a command."""

from __future__ import annotations

import functools
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = ("modules", "conda", "container")
CONTAINER_KEYS = ("image", "command", "options", "bind", "python")
APPTAINERS = ("apptainer", "singularity")
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


@dataclass(frozen=True)
class Container:
    """An image that the commands of jobs run in."""

    image: str
    """A file, or an address such as `docker://…`."""
    command: str = "apptainer"
    options: tuple[str, ...] = ("--nv",)
    bind: tuple[str, ...] = ()
    """Folders besides that of the project."""
    python: str = "python3"
    """The image's Python, which has Snakemake and all that jobs need."""

    def words(self, folder: Path) -> list[str]:
        """The words before a command; `folder` is the project's. ValueError where it cannot be bound."""
        if any(character in str(folder) for character in ",:"):
            raise ValueError(f"a container cannot have the folder {folder}: its path holds `,` or `:`; move the folder")
        image = self.image if "://" in self.image or self.image.startswith("$") else str(folder / self.image)
        binds = [word for place in (str(folder), *self.bind) for word in ("--bind", place)]
        return [self.command, "exec", *self.options, *binds, image]


@dataclass(frozen=True)
class Software:
    """What a site's jobs run with."""

    modules: tuple[str, ...] = ()
    conda: str | None = None
    container: Container | None = None

    @property
    def python(self) -> str | None:
        """The Python of jobs where it is not the driver's; a word that the job's own PATH explains."""
        if self.container is not None:
            return self.container.python
        return "python" if self.conda is not None else None

    def setup(self, conda_exe: str | None) -> list[str]:
        """Shell commands, in their order; `conda_exe` is used where the job's PATH has no conda."""
        lines = [FIND_MODULE, *(f"module load {shlex.quote(name)}" for name in self.modules)] if self.modules else []
        if self.conda is not None:
            conda = f"$(command -v conda || echo {shlex.quote(conda_exe or 'conda')})"
            lines += [f'eval "$("{conda}" shell.bash hook)"', f"conda activate {shlex.quote(self.conda)}"]
        return lines

    def container_words(self, folder: Path) -> list[str]:
        """The words before a command that runs in the image; none without one."""
        return [] if self.container is None else self.container.words(folder)


def read_software(site: Mapping[str, Any]) -> Software:
    """The keys of a site file, as plain data. ValueError says what is wrong, the value, and what is valid."""
    conda, container = site.get("conda"), site.get("container")
    if conda is not None and (not isinstance(conda, str) or not conda.strip()):
        raise ValueError(f"`conda` must be the name or the folder of an environment, not {conda!r}")
    return Software(_names(site, "modules"), conda, None if container is None else _container(container))


def _texts(given: Mapping[str, Any], name: str, texts: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
    """Those values of a map that are text; ValueError where one is not, or a key is not known."""
    if unknown := [str(key) for key in given if key not in known]:
        raise ValueError(f"`{name}` has no key `{unknown[0]}`; valid: {', '.join(known)}")
    values = {key: given[key] for key in texts if key in given}
    for key, value in values.items():
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"`{name}.{key}` must be text, not {value!r}")
    return values


def _container(given: Any) -> Container:
    if not isinstance(given, Mapping) or not isinstance(given.get("image"), str):
        raise ValueError(f"`container` must be a map with the key `image`, not {given!r}")
    values = _texts(given, "container", ("image", "command", "python"), CONTAINER_KEYS)
    values |= {key: _names(given, key) for key in ("options", "bind") if key in given}
    return Container(**values)


def _names(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = given.get(key) or []
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name.strip() for name in value):
        raise ValueError(f"`{key}` must be a list of words, not {value!r}")
    return tuple(value)


def shell_line(words: Sequence[str]) -> str:
    """Words as a shell reads them; `$NAME` in a word stands for the job's own variable."""
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if "$" not in word:
        return shlex.quote(word)
    escaped = "".join(f"\\{character}" if character in '"`\\' else character for character in word)
    return f'"{escaped}"'


def hand_on(words: Sequence[str]) -> list[str]:
    """Shell commands that put into the environment how a command on another node gets into the image.

    Nothing where the words are not those of Apptainer. The first word is looked up: the image has another PATH.
    """
    if not words or Path(words[0]).name not in APPTAINERS:
        return []
    found = f"command -v {_quoted(words[0])}"
    return [f"{found} >/dev/null", f"""export {WRAPPER}="'$({found})'"{shlex.quote(" " + shell_line(words[1:]))}"""]


def checked(lines: Sequence[str]) -> str:
    """Lines of shell, each command of which calls `setup_failed STATUS COMMAND` where it fails.

    ValueError where the last command has no end.
    """
    return "\n".join(
        f"{{ {command}\n}} || setup_failed $? {shlex.quote(command)}" for command in _commands(tuple(lines))
    )


@functools.lru_cache(maxsize=64)
def _commands(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Lines that belong to one command, together; without comments."""
    found: list[str] = []
    pending: list[str] = []
    for line in lines:
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if _is_complete(text := "\n".join(pending)):
            found.append(text)
            pending = []
    if pending:
        raise ValueError(f"`scheduler.setup` has a command without an end: {pending[0]!r}")
    return tuple(found)


def _is_complete(text: str) -> bool:
    if text.rstrip("\n").endswith("\\"):
        return False
    try:
        return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:  # without bash nothing can be looked at
        return True
