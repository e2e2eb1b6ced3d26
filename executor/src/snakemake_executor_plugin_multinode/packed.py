"""A site's `packed`: an environment in one file, which each node unpacks once onto its own disk."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

UNPACK = "MULTINODE_UNPACK"
"""Environment variable with the shell text by which a command on another node of the job gets the same environment there."""
PYTHON = "MULTINODE_PYTHON"
"""Environment variable with that environment's Python on the node."""

# For any POSIX shell, since other nodes run it with /bin/sh. Two locks on the node: descriptor 9 is held while something is
# unpacked or removed there; descriptor 8, shared, is kept until the job's last process on the node has ended, and until then
# nobody removes the environment that it uses. Files are counted because sites remove old ones from /tmp one by one.
FUNCTION = f"""\
multinode_count() {{ find "$1" -name __pycache__ -prune -o ! -type d -print | wc -l; }}
multinode_unpack() {{  # multinode_unpack FILE FOLDER
    multinode_folder="$2/multinode-$(id -u)"
    multinode_id=$(stat -L -c %i-%s-%Y "$1") && [ -r "$1" ] || {{
        echo "unpack: $1 cannot be read on $(uname -n)" >&2
        return 1
    }}
    mkdir -p "$2" && {{ mkdir -m 700 "$multinode_folder" 2>/dev/null || :; }}
    [ -O "$multinode_folder" ] && [ ! -L "$multinode_folder" ] && [ -w "$multinode_folder" ] || {{
        echo "unpack: $multinode_folder on $(uname -n) is not a folder that this user owns and can write to" >&2
        return 1
    }}
    multinode_place="$multinode_folder/$multinode_id"
    exec 9>"$multinode_folder/lock"
    flock 9 || return 1
    if ! [ -s "$multinode_place/.entries" ] || [ "$(multinode_count "$multinode_place")" -lt "$(cat "$multinode_place/.entries")" ]; then
        rm -rf "$multinode_folder"/*.part
        for multinode_other in "$multinode_folder"/*-*-*/; do
            [ ! -d "$multinode_other" ] || flock -n "$multinode_other" rm -rf "$multinode_other" || :
        done
        [ ! -d "$multinode_place" ] || {{
            echo "unpack: files are missing in $multinode_place on $(uname -n), which other jobs use: it can be made again once they have ended" >&2
            return 1
        }}
        mkdir "$multinode_place.part" && tar -x --no-same-owner -f "$1" -C "$multinode_place.part" || {{
            echo "unpack: $1 cannot be unpacked into $multinode_folder on $(uname -n)" >&2
            rm -rf "$multinode_place.part"
            return 1
        }}
        "$multinode_place.part/bin/python" -c '' || {{
            echo "unpack: the Python of $1 does not start on $(uname -n): does the node have that which it was made with?" >&2
            rm -rf "$multinode_place.part"
            return 1
        }}
        : >"$multinode_place.part/.entries"
        multinode_count "$multinode_place.part" >"$multinode_place.part/.entries" || return 1
        mv "$multinode_place.part" "$multinode_place" || return 1
    fi
    exec 8<"$multinode_place" && flock -s 8 || return 1
    exec 9>&-
    unset PYTHONHOME
    export PATH="$multinode_place/bin:$PATH" VIRTUAL_ENV="$multinode_place" {PYTHON}="$multinode_place/bin/python"
}}"""


@dataclass(frozen=True)
class Packed:
    """An environment that jobs unpack."""

    file: str
    """An archive that `tar` reads, with `bin/python` in it, and no absolute path of itself."""
    folder: str = "${TMPDIR:-/tmp}"
    """Folder on the node's own disk."""

    @property
    def call(self) -> str:
        """The line of shell that unpacks it where that is still to be done, and uses it from there on."""
        return f"multinode_unpack {_in_double_quotes(self.file)} {_in_double_quotes(self.folder)}"

    def setup(self) -> list[str]:
        """Shell commands of a job, in their order."""
        return [FUNCTION, self.call, f"export {UNPACK}={shlex.quote(f'{FUNCTION}{chr(10)}{self.call}')}"]


def _in_double_quotes(word: str) -> str:
    escaped = "".join(f"\\{character}" if character in '"`\\' else character for character in word)
    return f'"{escaped}"'
