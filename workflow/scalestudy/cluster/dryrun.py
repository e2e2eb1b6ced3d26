"""The jobs of a real dry run of Snakemake, in this process: the same command line, profiles and configuration."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan import Plan, Seen, make_plan, read_seen
from scalestudy.dag import Current, Project
from scalestudy.errors import UserError, nearest


def plan_of(
    targets: Sequence[str],
    profile: str,
    config: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> tuple[Plan, Project]:
    """What `snakemake TARGETS --profile PROFILE --config …` would submit now, without a scheduler."""
    known_profile(profile)
    arguments = ["--profile", profile, "-n", *more, *(["--config", *config] if config else []), "--", *targets]
    seen = _records(arguments, changes or {})
    project = Current.project
    assert project is not None
    return make_plan(project, seen, project.jobs_at_once), project


def known_profile(profile: str) -> None:
    """Raise UserError where there is no project, or no such profile in it."""
    if not Path("Snakefile").is_file():
        raise UserError("there is no Snakefile here", str(Path.cwd()), "run the command at the top of the project")
    if not any((Path(profile) / name).is_file() for name in ("config.yaml", "profile.yaml")):
        known = sorted(str(path.parent) for path in Path("profiles").glob("*/config.yaml"))
        raise UserError("there is no such profile", profile, nearest(profile, known))


def _records(arguments: Sequence[str], changes: Mapping[str, Any]) -> list[Seen]:
    from snakemake import cli

    import snakemake_logger_plugin_scalestudy as display

    Current.changes, Current.caps, Current.project = dict(changes), None, None
    collected = display.collect()
    # Warnings of Snakemake and of what the Snakefile prints belong to people, never into the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        parser, parsed = cli.parse_args(list(arguments))
        if "scalestudy" not in (parsed.logger or []):
            parsed.logger = [*(parsed.logger or []), "scalestudy"]
        Current.caps = {"_nodes": parsed.jobs, **parsed.resources}
        # Rounds of a hundred jobs would only take time: what may run at once is worked out from the caps.
        parsed.jobs, parsed.cores, parsed.resources, parsed.quiet = sys.maxsize, sys.maxsize, {}, set()
        well = cli.args_to_api(parsed, parser)
    if not well or Current.project is None:
        raise UserError("Snakemake could not plan this", " ".join(arguments), "\n    ".join(collected.errors))
    return read_seen(collected.jobs)
