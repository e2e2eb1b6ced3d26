"""A small workflow of an ordinary user in a box, and the driver that runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.box import USER, Box
from tests.integration.tries import made

ROOT = Path(__file__).resolve().parents[2]
SNAKEFILE = """\
import json
RUNS = json.load(open("runs.json"))

rule all:
    input: expand("results/{run}/result.json", run=RUNS)

rule train:
    output: "results/{run}/result.json"
    log: "results/{run}/train.log"
    resources:
        chain_state="state.json",
        **{
            key: (lambda key, default: lambda w: RUNS[w.run].get(key, default))(key, default)
            for key, default in dict(
                nodes=1, ranks_per_node=1, gpus_per_node=0, mem_mb=200, runtime=5, hosts=None
            ).items()
        }
    params:
        steps=lambda w: RUNS[w.run].get("steps", 1),
        step_s=lambda w: RUNS[w.run].get("step_s", 0),
        what=lambda w: RUNS[w.run].get("what", "well"),
    shell: "python trainer.py {output:q} {params.steps} {params.step_s} {params.what} > {log:q} 2>&1"
"""
OPTIONS = (
    "--executor", "multinode", "--jobs", "100", "--nolock", "--rerun-incomplete", "--keep-going", "--latency-wait", "10",
    "--seconds-between-status-checks", "2", "--multinode-site", "site.yaml", "--rerun-triggers", "mtime",
)  # fmt: skip


class Workflow:
    """A folder with `trainer.py` and a Snakefile, owned by the box's user."""

    words: tuple[str, ...] = OPTIONS
    """What the driver is started with."""

    def __init__(self, box: Box, name: str, site: dict[str, Any], runs: dict[str, dict[str, Any]]) -> None:
        self.box = box
        self.folder = box.home / name
        self.records = self.folder / ".multinode"
        """As this process sees it; what is mounted there in the box is not seen from outside."""
        self.folder.mkdir()
        (self.folder / "Snakefile").write_text(SNAKEFILE)
        shutil.copy(Path(__file__).parent / "trainer.py", self.folder)
        (self.folder / "site.yaml").write_text(json.dumps({"scheduler": site}))
        (self.folder / "runs.json").write_text(json.dumps(runs))
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, box.home.stat().st_uid, box.home.stat().st_gid)

    def drive(self, *arguments: str, timeout: float = 200) -> tuple[int, str]:
        """Run the driver to its end: exit status and output."""
        return self.start(*arguments).wait(timeout)

    def start(self, *arguments: str, first_in_path: Path | None = None) -> Driver:
        """Start the driver and come back. Commands in `first_in_path` take the place of the scheduler's own."""
        environment = environment_of(self.box)
        if first_in_path is not None:
            environment["PATH"] = f"{first_in_path}:{environment['PATH']}"
        words = ["snakemake", *self.words, *arguments]
        return Driver(self, self.box.command(words, USER, self.folder, **environment))

    def starts(self) -> Counter[str]:
        """How often each run's command was started."""
        file = self.folder / "starts.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(line.rsplit(maxsplit=2)[0] for line in lines)

    def events(self, event: str) -> list[dict[str, Any]]:
        """Lines of the ledger."""
        file = self.records / "jobs.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line["event"] == event]

    def ids(self) -> dict[str, str]:
        """By run, the scheduler's id of its last submission."""
        return {event["name"].split(".")[1]: event["id"] for event in self.events("submitted")}

    def results(self) -> int:
        """How many runs have a result."""
        return len(list(self.folder.glob("results/*/result.json")))

    def until(self, condition: Any, what: str, limit_s: float = 60) -> None:
        """Wait until something is seen."""
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, f"never seen: {what}"
            time.sleep(0.1)


class Shipped(Workflow):
    """The same through a profile as it is shipped: its files, word for word, in the workflow's folder."""

    def __init__(self, box: Box, name: str, profile: str, runs: dict[str, dict[str, Any]]) -> None:
        super().__init__(box, name, {}, runs)
        self.words = ("all", "--profile", f"profiles/{profile}")
        for one in (profile, "default"):
            shutil.copytree(ROOT / "profiles" / one, self.folder / "profiles" / one)
        (self.folder / ".venv").symlink_to(sys.prefix)
        profiles = self.folder / "profiles"
        for path in (profiles, *profiles.rglob("*")):
            os.chown(path, box.home.stat().st_uid, box.home.stat().st_gid)


def environment_of(box: Box) -> dict[str, str]:
    """What the box's user has set: this installation, and a home in the box."""
    return {
        "HOME": str(box.home),
        "TMPDIR": "/tmp",
        "SCALESTUDY_LOCKS": str(box.home),
        "SCALESTUDY_DRIVER": "",  # that of the tests is not seen from a box
        "PATH": f"{Path(sys.executable).parent}:{box.environment.get('PATH', os.environ['PATH'])}",
        "PYTHONPATH": str(ROOT / "workflow"),
        "XDG_CACHE_HOME": str(box.home / "cache"),
    }


def message(output: str, wildcard: str) -> str:
    """What a driver said about the failure of one run."""
    blocks = [block for block in output.split("Error in rule ")[1:] if f"results/{wildcard}/result.json" in block]
    assert blocks, f"{wildcard} did not fail:\n{output}"
    return blocks[0].partition("message: ")[2].partition("\n")[0]


class Driver:
    """A driver that runs."""

    def __init__(self, workflow: Workflow, command: list[str]) -> None:
        self.workflow = workflow
        self.log = workflow.box.folder / f"driver{time.monotonic_ns()}.log"
        with open(self.log, "w") as log:
            # A background shell without job control has its children ignore SIGINT.
            command = ["env", "--default-signal=INT", *command]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(python_below(self.process.pid), number)

    def wait(self, timeout: float = 120) -> tuple[int, str]:
        """Its exit status and output, once it has ended."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end:\n{self.log.read_text()}") from None
        for log in sorted(self.workflow.records.glob("jobs/*/*.log")) if status else ():
            print(f"-- {log.name}: {log.read_text(errors='replace')[-1500:]}")  # shown where the test fails
        return status, self.log.read_text()


def python_below(pid: int, limit_s: float = 60) -> int:
    """The process, as the host counts, of the Python that a command in a box runs, below nsenter and runuser.

    It is waited for: on a busy machine they take a while.
    """
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if arguments[0].endswith(b"python"):
            return pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(children[0]) if children else pid
        time.sleep(0.01)
    raise AssertionError("there is no driver")


def second_driver(workflow: Workflow, starts: int) -> Driver:
    """A driver that has adopted the run `long`: the first one was killed when so many runs had started."""
    driver = workflow.start()
    workflow.until(lambda: len(workflow.starts()) == starts, "all starts", 90)
    driver.kill()
    driver.wait()
    driver = workflow.start()
    workflow.until(lambda: "long: adopted" in driver.log.read_text(), "adoption")
    return driver


# What is asserted of every scheduler


def assert_fates(workflow: Workflow, output: str, done: set[str]) -> None:
    """The runs `done` have results, failures say why, and each job was submitted and begun once, but the chain `long`, and
    one that was requeued.

    A run whose failure the first driver has told is tried again by the second: that is what a new start is for.
    """
    assert {path.parent.name for path in workflow.folder.glob("results/*/result.json")} == done
    assert "the loss is not a number" in message(output, "fails")
    assert "its command failed" in message(output, "crashes")
    starts = workflow.starts()
    assert {starts[name] for name in done & {"long", "requeued"}} == {2}
    once = [name for name in starts if name not in ("long", "fails", "crashes")]
    assert {starts[name] for name in once if name != "requeued"} == {1}
    submitted = [event["job"].removeprefix("train ") for event in workflow.events("submitted")]
    assert sorted(name for name in submitted if name in once) == sorted(once)
    assert submitted.count("long") == 2


def assert_a_kill_and_a_ctrl_c_cost_no_job(
    box: Box, profile: str, stop: Callable[[], None], start: Callable[[], None]
) -> None:
    """Through the profile as it is shipped: a driver is killed; its successor is interrupted while the scheduler is away."""
    workflow = Shipped(box, "shipped", profile, {f"run{n}": {"steps": 1000, "step_s": 1} for n in range(2)})
    driver = workflow.start()
    workflow.until(lambda: len(workflow.starts()) == 2, "two starts", 90)
    driver.kill()
    assert driver.wait()[0] != 0
    driver = workflow.start()
    workflow.until(lambda: driver.log.read_text().count("adopted as") == 2, "both taken up again")
    stop()
    driver.kill(signal.SIGINT)
    time.sleep(0.5)
    if driver.process.poll() is None:  # a deletion may fail at once, and the first Ctrl-C have ended the driver
        driver.kill(signal.SIGINT)
    code, output = driver.wait()
    start()
    (workflow.folder / "enough").touch()
    assert code in (1, 130)
    assert "the scheduler did not delete 2 jobs (qdel: " in output
    code, output = workflow.drive()
    assert code == 0, output
    assert workflow.results() == 2
    assert workflow.starts() == {"run0": 1, "run1": 1}


def assert_waits_for_room(box: Box, site: dict[str, str], limit: Callable[[int], None], why: str) -> None:
    """Jobs beyond a `limit` per user wait until others have ended, with one message, `why`. Unlimited: 0.

    The user has no other jobs.
    """
    limit(1)
    try:
        workflow = Workflow(box, "limited", site, {"run0": {}, "run1": {}})
        code, output = workflow.drive()
    finally:
        limit(0)
    assert code == 0, output
    assert workflow.results() == 2
    assert set(workflow.starts().values()) == {1}
    assert output.count(f"the scheduler takes no more jobs for now ({why}") == 1, output


def assert_on_named_nodes(box: Box, site: dict[str, Any], hosts: tuple[str, str]) -> None:
    """Check that jobs get the nodes that they name: the last, where a free choice would take the first, and both.

    A job that names none gets as many as it requests.
    """
    runs: dict[str, dict[str, Any]] = {"on the last": {"hosts": hosts[1]}}
    runs["on both"] = {"hosts": ",".join(reversed(hosts)), "nodes": 2}
    runs["on any"] = {"nodes": 2, "gpus_per_node": 2}
    workflow = Workflow(box, "named nodes", site, {name: {**run, "ranks_per_node": 2} for name, run in runs.items()})
    code, output = workflow.drive()
    assert code == 0, output
    found = {name: json.loads((workflow.folder / f"results/{name}/result.json").read_text())["nodes"] for name in runs}
    assert len(found.pop("on any")) == 2
    assert found == {name: sorted(runs[name]["hosts"].split(",")) for name in found}


def assert_trains_on_two_hosts(box: Box, submit: Sequence[str]) -> dict[str, Any]:
    """Train four ranks in a job on both hosts, wait for its end and check its result; return how it was launched."""
    folder, job = box.home / "launch", box.folder / "job.sh"
    box.must(["mkdir", str(folder)], USER)
    # Neither scheduler gives a job the submitter's PATH.
    exports = "".join(f"export {name}={value}\n" for name, value in environment_of(box).items())
    program = Path(sys.executable).parent / "scalestudy"
    words = "ranks=4 nodes=2 strategy=allreduce train.epochs=2 --out out"
    job.write_text(f"{exports}cd {folder}\n{program} try {words}\n")
    done = box.run([*submit, "-o", str(folder / "said"), str(job)], USER, folder, **environment_of(box))
    said = box.until(["cat", str(folder / "said")], "samples/s")  # PBS brings the output back a little later
    assert made(done.returncode, said), done.stdout + said
    result = json.loads((folder / "out" / "result.json").read_text())
    assert result["samples_seen"] == 2 * 11 * 128
    return dict(result["launch"])
