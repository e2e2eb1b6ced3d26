"""The script that a scheduler runs: it passes signals on, keeps the deadline, and says itself how it ended."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from snakemake_executor_plugin_multinode.schedulers import Request
from snakemake_executor_plugin_multinode.site import Site
from snakemake_executor_plugin_multinode.software import (
    SETUP_FAILED,
    checked,
    container_words,
    hand_on,
    setup_lines,
    shell_line,
)

# 4500 times 0.2 s is 15 minutes of waiting for a checkpoint; the scheduler's own patience is shorter.
BEAT_S = 30
INSIST_TIMES, INSIST_S = 120, 5
"""A status file that cannot be written is tried again so often, so many seconds apart: a quota is full for a while."""
ACTIVE = "$`\\"
"""Characters that a shell reads between double quotes."""
LOCALE = (
    "LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME",
)  # fmt: skip
"""locale(7)."""
TEXT = """\
#!/bin/bash
# {title}
status_files={status_files}
name={name}
write_status() {{  # write_status SUFFIX LINE...: synced, then renamed, so that it is whole or absent
    local file="$status_files/$name.$1"
    shift
    printf '%s\\n' "$@" >"$file.$$" && {{ sync "$file.$$" 2>/dev/null || true; }} && mv -f "$file.$$" "$file"
}}
insist() {{  # insist COMMAND: the disk may be full for a while
    for _ in $(seq {insist_times}); do
        "$@" && return
        sleep {insist_s}
    done
    return 1
}}
forbidden() {{  # its driver has given it up, has judged its end, or has its result and has removed its script
    [ "$(readlink "$status_files/$name.token")" = void ] || [ ! -e {script} ]
}}
ln -s run "$status_files/$name.token" 2>/dev/null
forbidden && exit 0
# A scheduler may start a script a second time: by a requeue, or because it has forgotten the first start.
requeued=$((${{SLURM_RESTART_COUNT:-0}} + ${{RESTARTED:-0}}))  # Slurm, Grid Engine
if [ -n "${{PBS_JOBID:-}}" ] && [ -e "$status_files/$name.began" ]; then  # PBS does not tell: its server is asked
    programs=$(sed -n 's/^ *PBS_EXEC=//p' "${{PBS_CONF_FILE:-/etc/pbs.conf}}" 2>/dev/null)
    runs=$(PATH=$programs/bin:$PATH timeout 60 qstat -f "$PBS_JOBID" 2>/dev/null | sed -n 's/^ *run_count = //p')
    [ "${{runs:-1}}" -gt 1 ] 2>/dev/null && requeued=1
fi
if [ -e "$status_files/$name.ended" ]; then
    grep -qx exit=0 "$status_files/$name.ended" && exit 0
    [ "$requeued" = 0 ] && exit 1
    rm -f "$status_files/$name.ended"
elif [ -e "$status_files/$name.began" ] && [ "$requeued" = 0 ]; then
    # As long as another copy touches its file, this one would be a second writer.
    touched=$(stat -c %y "$status_files/$name.began")
    sleep {second_start_s}
    [ "$touched" = "$(stat -c %y "$status_files/$name.began")" ] || exit 1
fi
began=$(date +%s)
insist write_status began "began=$began" "host=$(hostname)" || exit 1
forbidden && exit 1  # in this moment
{exports}
# A scheduler may lose a job that runs: as long as this file is touched, it does.
(
    trap '' USR1 USR2
    while sleep {beat_s} && kill -0 $$ 2>/dev/null; do touch -c "$status_files/$name.began"; done
) </dev/null >/dev/null 2>&1 &  # who reads the output of this job does not wait for it
heart=$!
signalled=
trap 'signalled=TERM' TERM
# Snakemake would die of a warning signal before the command has seen it. Ignored signals stay ignored in children, and
# a command that wants them sets its own handler.
(
    trap '' USR1 USR2
    trap : TERM  # this shell outlives a TERM to all, or the exit status of the command would be lost
    cd {workdir} || exit 1
    setup_failed() {{  # setup_failed STATUS COMMAND: what the site lacks today is no result of the command
        echo "the job's set-up failed (exit status $1): $2" | tee "$MULTINODE_FAULT" >&2
        echo {setup_failed} >"$status_files/$name.code"
        exit {setup_failed}
    }}
{setup}
    {command}
    code=$?
    echo "$code" >"$status_files/$name.code"
    exit "$code"
) &
child=$!
for warning in USR1 USR2; do
    trap "signalled=$warning; trap '' $warning; kill -$warning 0" $warning
done
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
# A wait that a signal interrupts tells of the signal, not of the command; bash 5.2 forgets the status in that moment.
# A disk that was full leaves an empty file.
[ -s "$status_files/$name.code" ] && read -r code <"$status_files/$name.code"
rm -f "$status_files/$name.code"
# Stopped first, so that it starts no other sleep between the two.
kill -STOP "$heart" 2>/dev/null
pkill -P "$heart" 2>/dev/null
kill -TERM "$heart" 2>/dev/null
kill -CONT "$heart" 2>/dev/null
# A signal may have ended Snakemake, but not yet a command that saves its state: when this script ends, all is killed.
# Counted through a file, since a subshell would count itself; without pgrep nothing is waited for.
if [ -n "$signalled" ]; then
    for _ in $(seq 4500); do
        pgrep -c -g 0 >"$status_files/$name.left" 2>/dev/null
        read -r left <"$status_files/$name.left"
        [ "${{left:-1}}" -le 1 ] && break
        sleep 0.2
    done
    rm -f "$status_files/$name.left"
fi
# A command that finds its node unfit says so there.
fault=$(head -c 500 "$MULTINODE_FAULT" 2>/dev/null | tr '\\n' ' ')
rm -f "$MULTINODE_FAULT"
[ "$code" != {setup_failed} ] || fault="${{fault:-the set-up failed; the output of this job says which line of it}}"
insist write_status ended "exit=$code" "signal=$signalled" "fault=$fault" "began=$began" "ended=$(date +%s)" "host=$(hostname)"
exit "$code"
"""


def write_script(
    request: Request,
    site: Site,
    status_files: Path,
    title: str,
    command: str,
    environment: Mapping[str, str],
    checks: Sequence[str] = (),
) -> None:
    """Write the script of a job that runs in the current folder, with the site's software.

    `command` is a line of shell, run in the site's container where there is one; `checks` are further commands of the
    set-up. The job finds what this process finds: the folder of its Python comes first in PATH. ValueError where the set-up
    is no shell, or a container cannot have the folder.
    """
    folder = Path.cwd()
    container = container_words(site, folder)
    setup = [
        *setup_lines(site, os.environ.get("CONDA_EXE")),
        *(site.scheduler.setup if site.scheduler else ()),
        *checks,
    ]
    exports = [
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        f"export MULTINODE_JOB={request.name}",
        f"export MULTINODE_FAULT={shlex.quote(str(status_files / request.name))}.fault",
        *exports_of(environment, os.environ),
    ]
    if request.runtime_min is not None:
        # Slurm 23.02 and later say when they will kill; elsewhere it is the start plus the walltime.
        exports.append(f"export MULTINODE_DEADLINE=${{SLURM_JOB_END_TIME:-$((began + {request.runtime_min * 60}))}}")
    if container:
        command = f"{shell_line(container)} /bin/bash -c {shlex.quote(command)}"
    text = TEXT.format(
        title=" ".join(title.split()),
        status_files=shlex.quote(str(status_files)),
        name=shlex.quote(request.name),
        script=shlex.quote(str(request.script)),
        beat_s=BEAT_S,
        second_start_s=BEAT_S * 1.5,
        insist_times=INSIST_TIMES,
        insist_s=INSIST_S,
        setup_failed=SETUP_FAILED,
        exports="\n".join(exports),
        workdir=shlex.quote(str(folder)),
        setup=checked([*setup, *hand_on(container)]),
        command=command,
    )
    request.script.touch(0o700)
    request.script.write_text(text, encoding="utf-8")


def exports_of(own: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return shell lines that give a job its variables, with the driver's locale: a rule sorts and counts as it does there."""
    lines = [
        f"export {name}={shlex.quote(environment[name])}" if name in environment else f"unset {name}" for name in LOCALE
    ]
    return [*lines, *(f"export {name}={shlex.quote(value)}" for name, value in own.items())]


def requoted(command: str, values: Iterable[str]) -> str:
    """A command line of Snakemake with these values quoted for a shell.

    Snakemake 9.27 quotes by Python's `repr`. That of a value with an apostrophe has double quotes, between which a shell
    still expands `$` and backticks; one with both quotes, a backslash or a line break comes out as other text.
    ValueError where something active is left: a value that is not among them, which the shell would change.
    """
    rest = command
    for value in sorted(set(values), key=len, reverse=True):
        # A value with quotes of its own at both ends is taken by Snakemake for one that is quoted already.
        command = command.replace(repr(value), shlex.quote(value))
        rest = rest.replace(repr(value), "")
    if any(character in rest for character in ACTIVE):
        at = min(rest.find(character) for character in ACTIVE if character in rest)
        raise ValueError(
            f"a name, path or option of this job cannot be handed on safely, near {rest[max(0, at - 30) : at + 30]!r}: "
            "it has a dollar sign, backtick or backslash"
        )
    return command
