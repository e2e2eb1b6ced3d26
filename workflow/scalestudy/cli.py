"""`scalestudy <verb>`: the only thing that a rule calls. Verbs import what they need when they are used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalestudy import __version__
from scalestudy.errors import UserError

if TYPE_CHECKING:
    from scalestudy.spec.study import Study

CONFIG = Path("config/config.yaml")
MACHINE = click.option("--machine", default="local", show_default=True, help="Name of a file in config/machines/.")
SCALE = click.option("--scale", default="mini", show_default=True, help="mini, node or paper.")
STUDY = click.option("--study", required=True, help="Name of a file in config/studies/.")
FROM = click.option(
    "--from",
    "borrow",
    default=None,
    type=click.Path(path_type=Path),
    help="A checkpoint to begin from: a folder `step-…` below `checkpoint/` of a run that stopped.",
)
OUT = click.option("--out", required=True, type=click.Path(path_type=Path), help="File to write, whole or not at all.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="scalestudy")
def cli() -> None:
    """Evaluate distributed deep-learning training, reproducibly.

    Most people need only `make run`, `snakemake all --profile profiles/local`, and `scalestudy try`.
    """


@cli.command()
@click.option("--config", "file", default=CONFIG, show_default=True, type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check the configuration: every study at every scale that it has.

    Example: scalestudy check
    """
    from scalestudy.spec.config import SCALES, read_config, read_machine
    from scalestudy.spec.study import read_studies

    config = read_config(file)
    machine = read_machine(config.machine)
    names = None if config.studies == "all" else config.studies
    for scale in SCALES:
        try:
            studies = read_studies(names, scale, machine, tags=config.tags, machine_name=config.machine)
        except UserError as error:
            if scale != config.scale and "has scale" in error.what:
                continue
            raise
        runs = {run.id for study in studies for run in study.runs}
        chosen = "  (chosen)" if scale == config.scale else ""
        click.echo(f"{scale:5}  {len(studies)} studies, {len(runs)} runs{chosen}")


@cli.command(name="list")
@MACHINE
@SCALE
@click.option("--study", default=None, help="Only this study.")
def list_runs(machine: str, scale: str, study: str | None) -> None:
    """List the runs of the studies and their status.

    Example: scalestudy list --study gpu_scaling
    """
    from scalestudy.results.stored import read_result
    from scalestudy.spec.config import read_machine
    from scalestudy.spec.study import read_studies

    for found in read_studies([study] if study else None, scale, read_machine(machine), machine_name=machine):
        click.echo(f"{found.name}: {found.question}")
        for run in found.runs:
            click.echo(f"  {(read_result(machine, run) or {'status': 'not run'})['status']:8} {run.id}")


@cli.command()
@click.option("--watch", is_flag=True, help="Keep looking until the driver has ended.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(watch: bool, as_json: bool) -> None:
    """Show how far the work in this folder is, how long it will still take, and the command that resumes it.

    Example: scalestudy status --watch
    """
    from scalestudy.commands.status import show_status

    show_status(watch, as_json)


@cli.command()
@OUT
@click.option(
    "--spec", "text", default=None, help="The dataset's spec as JSON; by default `dataset.json` beside --out."
)
@click.option(
    "--bulk", default=None, type=click.Path(path_type=Path), help="Folder for the bulk; by default beside the manifest."
)
def prepare(out: Path, text: str | None, bulk: Path | None) -> None:
    """Prepare a dataset and write its manifest.

    Example: scalestudy prepare --spec '{"source": "digits"}' --out /tmp/digits/manifest.json
    """
    from scalestudy.commands.prepare import prepare as prepare_data

    click.echo(prepare_data(out, text, bulk))


@cli.command()
@click.argument("manifest", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--from", "origin", default=None, help="A folder or an address that holds the same files.")
@click.option("--share", default=None, help="K/N: what node K of N needs, counted from 0. By default everything.")
@click.option("--streams", default=4, show_default=True, type=click.IntRange(1, 1024), help="Threads that copy.")
@click.option("--mib-per-s", default=None, type=click.FloatRange(0, min_open=True), help="Copy at most so fast.")
def stage(manifest: Path, origin: str | None, share: str | None, streams: int, mib_per_s: float | None) -> None:
    """Copy prepared data to this node's own disk, ahead of the runs that will use the copies.

    A run with `stage` does so by itself. What was whole when this was killed is not copied again.

    Example: scalestudy stage results/data/digits-0123456789ab/manifest.json
    """
    from scalestudy.commands.stage import stage_data

    click.echo(stage_data(manifest, origin, share, streams, mib_per_s))


@cli.command()
def unstage() -> None:
    """Remove the copies on this node that no run is using.

    Example: scalestudy unstage
    """
    from scalestudy.commands.stage import unstage_data

    click.echo(unstage_data())


@cli.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="result.json to write; spec.json lies beside it."
)
def train(out: Path) -> None:
    """Make one run: what its spec.json says, into its result.json.

    Example: scalestudy train --out results/local/runs/RUN/result.json
    """
    sys.exit(_in_warm_parent(["_train", "--out", str(out)]))


@cli.command(name="_train", hidden=True)
@click.option("--out", required=True, type=click.Path(path_type=Path))
def train_here(out: Path) -> None:
    """`train`, in this process."""
    from scalestudy.commands.train import train_from_spec

    train_from_spec(out)


@cli.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("index", type=int, required=False)
def agent(folder: Path, index: int | None) -> None:
    """One node of a run on several; started by a launcher."""
    sys.exit(_in_warm_parent(["_agent", str(folder), *([] if index is None else [str(index)])]))


@cli.command(name="_agent", hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("index", type=int, required=False)
def agent_here(folder: Path, index: int | None) -> None:
    """`agent`, in this process."""
    from scalestudy.launch.agent import main as be_agent

    sys.exit(be_agent(folder, index))


@cli.command(name="try")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the run's files.")
@FROM
def try_run(settings: tuple[str, ...], out: Path, borrow: Path | None) -> None:
    """Make one run outside the DAG, with defaults for what is not said, and print its figures.

    A run that stopped on purpose (exit status 75) or was killed goes on when the same command is given again. With
    --from, a run goes on from another one's checkpoint, on another number of ranks or with another exchange.

    \b
    Example: scalestudy try strategy=allreduce ranks=2 train.epochs=5 --out /tmp/a
    Example: scalestudy try model=resnet50 device=emulated:p100 data.source=synthetic measure.steps=20 --out /tmp/b
    """
    begin = ["--from", str(borrow)] if borrow else []
    sys.exit(_in_warm_parent(["_try", *settings, "--out", str(out), *begin]))


@cli.command(name="_try", hidden=True)
@click.argument("settings", nargs=-1)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@FROM
def try_here(settings: tuple[str, ...], out: Path, borrow: Path | None) -> None:
    """`try`, in this process."""
    from scalestudy.commands.train import try_settings

    try_settings(settings, out, borrow)


@cli.command(name="largest-batch")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--memory-mib", type=click.FloatRange(min=1), help="Limit; unset: all of a GPU, 90 % of free memory.")
def largest_batch(settings: tuple[str, ...], memory_mib: float | None) -> None:
    """Find the largest batch per rank that fits, by training with it: doubling, then bisection.

    \b
    Example: scalestudy largest-batch model=resnet50 data="{source: synthetic, classes: 1000}" --memory-mib 4096
    """
    from scalestudy.commands.train import find_largest_batch

    find_largest_batch(settings, memory_mib)


@cli.command()
@click.argument("what", type=click.Choice(["horovod"]))
@click.option("--out", default=None, type=click.Path(path_type=Path), help="File to write what came of it.")
def build(what: str, out: Path | None) -> None:
    """Compile what has to be compiled on this machine, once: Horovod, in some minutes.

    Example: scalestudy build horovod
    """
    from scalestudy.commands.build import build_horovod

    build_horovod(out)


@cli.command()
@MACHINE
@SCALE
@STUDY
def summarise(machine: str, scale: str, study: str) -> None:
    """Gather a study's results into runs.parquet and summary.csv.

    Example: scalestudy summarise --study gpu_scaling
    """
    from scalestudy.analysis.summarise import summarise as write_summary
    from scalestudy.locks import beside_measured_runs

    with beside_measured_runs():
        write_summary(_study(machine, scale, study), machine)


@cli.command()
@MACHINE
@SCALE
@STUDY
@click.option("--name", required=True, help="Name of the figure in the study.")
def figure(machine: str, scale: str, study: str, name: str) -> None:
    """Draw one figure of a study, as SVG, PDF and PNG.

    Example: scalestudy figure --study gpu_scaling --name time
    """
    from scalestudy.figures.draw import draw
    from scalestudy.locks import beside_measured_runs

    with beside_measured_runs():
        draw(_study(machine, scale, study), machine, name)


@cli.command()
@MACHINE
@SCALE
@STUDY
@click.option("--name", required=True, help="Name of the table in the study.")
def table(machine: str, scale: str, study: str, name: str) -> None:
    """Write one table of a study, as CSV, Markdown and LaTeX.

    Example: scalestudy table --study gpu_scaling --name times
    """
    from scalestudy.figures.tables import write_table
    from scalestudy.locks import beside_measured_runs

    with beside_measured_runs():
        write_table(_study(machine, scale, study), machine, name)


@cli.command()
@MACHINE
@SCALE
@OUT
@click.option("--studies", required=True, help="Names, separated by commas.")
def report(machine: str, scale: str, out: Path, studies: str) -> None:
    """Write everything of some studies as one self-contained page.

    Example: scalestudy report --studies gpu_scaling --out report.html
    """
    from scalestudy.figures.report import write_report
    from scalestudy.locks import beside_measured_runs

    with beside_measured_runs():
        write_report([_study(machine, scale, name) for name in studies.split(",")], machine, scale, out)


@cli.command()
@MACHINE
@SCALE
@click.option("--studies", default="all", help="Names, separated by commas, or all.")
@click.option("--since", type=float, default=None, help="When the work began, seconds since 1970.")
def summary(machine: str, scale: str, studies: str, since: float | None) -> None:
    """Say what there is: figures, tables, report, what is left out and why.

    Example: scalestudy summary
    """
    from scalestudy.commands.summary import print_summary

    print_summary(machine, scale, None if studies == "all" else studies.split(","), since)


@cli.command()
@click.argument("runs", nargs=-1)
@MACHINE
@click.option("--skipped", is_flag=True, help="All runs that were skipped, once what was missing is there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(runs: tuple[str, ...], machine: str, skipped: bool, yes: bool) -> None:
    """Delete the results of runs, so that they are made again. Their time goes into no other account.

    Example: scalestudy forget small_cnn.digits.allreduce.x2.r0-0123456789ab
    """
    from scalestudy.commands.forget import forget_runs

    forget_runs(list(runs), machine, skipped, yes)


@cli.command()
@click.argument("study")
@MACHINE
@SCALE
@click.option(
    "--out", type=click.Path(path_type=Path), default=None, help="Archive to write; default STUDY-MACHINE-SCALE.tar.gz."
)
def export(study: str, machine: str, scale: str, out: Path | None) -> None:
    """Pack a study's results (no data, no checkpoints) to hand them on; `tar xzf` in another clone unpacks them.

    Example: scalestudy export gpu_scaling
    """
    from scalestudy.commands.export import export_study

    file = out or Path(f"{study}-{machine}-{scale}.tar.gz")
    count = export_study(_study(machine, scale, study), machine, scale, file)
    click.echo(
        f"{file}: {count} runs, {file.stat().st_size / 2**20:.1f} MiB. Unpack it at the top of a clone: tar xzf {file.name}"
    )


@cli.command()
@click.argument("targets", nargs=-1)
@click.option("--profile", default="profiles/local", show_default=True, help="Where it would run.")
@click.option(
    "--config", "config", multiple=True, metavar="KEY=VALUE", help="As Snakemake's --config; may be repeated."
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="What every study would say instead.")
@click.option(
    "--json", "json_file", default=None, metavar="FILE|-", help="The whole plan as JSON; -: to standard output."
)
@click.option("--csv", "csv_file", default=None, metavar="FILE|-", help="The table as CSV.")
@click.option("--gantt", default=None, metavar="FILE", help="Draw when the runs would run: svg, pdf or png.")
@click.option("--budget", type=float, default=None, metavar="H", help="GPU hours; asking for more ends with status 3.")
@click.option("--actual", is_flag=True, help="Set what was planned against what finished runs have used.")
def plan(targets: tuple[str, ...], profile: str, **options: Any) -> None:
    """Plan what would run now: jobs, GPU hours, storage, makespan, before anything is submitted.

    \b
    Example: scalestudy plan --profile profiles/pbs --config scale=paper
    Example: scalestudy plan gpu_scaling --profile profiles/slurm --set repeats=5 --json -
    """
    from scalestudy.commands.plan import Options, show_plan

    sys.exit(show_plan(targets, profile, Options(**options)))


@cli.command()
@click.option("--profile", default="profiles/local", show_default=True, help="Whose nodes to look at.")
@click.option(
    "--config", "config", multiple=True, metavar="KEY=VALUE", help="As Snakemake's --config; may be repeated."
)
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Nodes of the job; default 2, or the machine's if fewer."
)
@click.option("--wait", type=float, default=600, show_default=True, help="Seconds to wait for the job.")
@click.option("--json", "json_file", default=None, metavar="FILE|-", help="What was found, as JSON.")
@click.option("--in-job", nargs=2, hidden=True, default=None)
def doctor(in_job: tuple[str, str] | None, **options: Any) -> None:
    """Look at the nodes where runs would run: Python, torch, CUDA, NCCL, MPI, fabric, scratch, clock, shared storage.

    \b
    Example: scalestudy doctor
    Example: scalestudy doctor --profile profiles/pbs
    """
    if in_job is not None:
        from scalestudy.cluster.doctor import on_nodes

        sys.exit(on_nodes(Path(in_job[0]), in_job[1]))
    from scalestudy.commands.doctor import show_doctor

    sys.exit(show_doctor(**options))


@cli.command()
@click.option("--write", is_flag=True, help="Write workflow/schemas/ and the key reference in config/README.md.")
def schema(write: bool) -> None:
    """The JSON Schemas by which editors complete and check study files.

    Example: scalestudy schema --write
    """
    import json

    from scalestudy.spec import schema as schemas

    if write:
        schemas.write_all(Path())
    else:
        click.echo(json.dumps(schemas.schemas(), indent=1))


def _study(machine: str, scale: str, name: str) -> Study:
    from scalestudy.spec.config import read_machine
    from scalestudy.spec.study import read_studies

    return read_studies([name], scale, read_machine(machine), machine_name=machine)[0]


def _in_warm_parent(arguments: list[str]) -> int:
    from scalestudy.launch import warm

    status = warm.call(arguments) if warm.wanted() else None
    return run_command(arguments) if status is None else status


def run_command(arguments: list[str]) -> int:
    """Run one command line; returns its exit status. What a user can remedy is said without a traceback."""
    try:
        result: Any = cli.main(args=arguments, prog_name="scalestudy", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except UserError as error:
        click.echo(f"scalestudy: {error}", err=True)
        return 2
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except OSError as error:
        click.echo(
            f"scalestudy: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""), err=True
        )
        return 1


def main() -> None:
    """The console script."""
    sys.exit(run_command(sys.argv[1:]))
