"""The jobs of a real dry run of Snakemake, in this process: the same command line, profiles and configuration."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalestudy.cluster.plan.gpu_hours import make_plan, read_seen
from scalestudy.cluster.plan.planned import AnnouncedJob, Plan
from scalestudy.dag.driver import PLAN, plain_caps
from scalestudy.dag.project import Project
from scalestudy.errors import UserError, nearest
from scalestudy.files import write_json
from scalestudy.spec.yamlfile import read_yaml


def plan_of(
    targets: Sequence[str],
    profile: str,
    config: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> tuple[Plan, Project]:
    """What `snakemake TARGETS --profile PROFILE --config …` would submit now, without a scheduler."""
    from snakemake import cli

    known_profile(profile)
    arguments = ["--profile", profile, "-n", *more, *(["--config", *config] if config else []), "--", *targets]
    parser, parsed = cli.parse_args(arguments)
    given = _configuration(parsed)
    caps = {"_nodes": parsed.jobs, **plain_caps(parsed.resources)}
    seen = _dry_run(parser, parsed, {"changes": changes, "caps": caps})
    project = Project(given, caps, changes)
    return make_plan(project, seen, project.resources.jobs_at_once), project


def known_profile(profile: str) -> None:
    """Raise UserError where there is no project, or no such profile in it."""
    if not any(Path(name).is_file() for name in ("Snakefile", "workflow/Snakefile")):
        raise UserError("there is no Snakefile here", str(Path.cwd()), "run the command at the top of the project")
    if not any((Path(profile) / name).is_file() for name in ("config.yaml", "profile.yaml")):
        known = sorted(str(path.parent) for path in Path("profiles").glob("*/config.yaml"))
        raise UserError("there is no such profile", profile, nearest(profile, known))


def configuration_of(profile: str, config: Sequence[str]) -> dict[str, Any]:
    """What the Snakefile would get as its configuration."""
    from snakemake import cli

    known_profile(profile)
    _, parsed = cli.parse_args(["--profile", profile, *(["--config", *config] if config else [])])
    return _configuration(parsed)


def _configuration(parsed: Any) -> dict[str, Any]:
    import yaml
    from snakemake import cli

    found: dict[str, Any] = {}
    for file in parsed.configfile or ():
        found |= read_yaml(file).data
    try:
        return found | dict(cli.parse_config(parsed.config))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"cannot be read: {said}", "--config", "write key=value, for example scale=paper") from None


def _dry_run(parser: Any, parsed: Any, plan: Mapping[str, Any]) -> list[AnnouncedJob]:
    """The jobs that a dry run announces; `plan` goes to the Snakefile."""
    from snakemake import cli

    if "scalestudy" not in (parsed.logger or []):
        parsed.logger = [*(parsed.logger or []), "scalestudy"]
    # Rounds of a hundred jobs would only take time: what may run at once is worked out from the caps.
    parsed.jobs, parsed.cores, parsed.resources, parsed.quiet = sys.maxsize, sys.maxsize, {}, set()
    with tempfile.TemporaryDirectory(prefix="scalestudy-plan-") as folder:
        parsed.logger_scalestudy_jobs_file = file = Path(folder) / "jobs.jsonl"
        write_json(Path(folder) / "plan.json", plan)
        parsed.config = [*(parsed.config or []), f"{PLAN}={folder}/plan.json"]
        # Warnings of Snakemake and of what the Snakefile prints are for people, never for the JSON.
        with contextlib.redirect_stdout(sys.stderr):
            done = cli.args_to_api(parsed, parser)
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    if not done:
        errors = [_without_frames(line["error"]) for line in lines if "error" in line]
        raise UserError("Snakemake could not plan this", " ".join(parsed.targets), "\n    ".join(errors))
    return read_seen(line for line in lines if "error" not in line)


def _without_frames(error: str) -> str:
    """What Snakemake says of an error; of one that it did not expect the last line, without the frames before it."""
    return error.strip().splitlines()[-1] if "Traceback (most recent call last)" in error else error
