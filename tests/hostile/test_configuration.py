"""config/config.yaml and machine files by `scalestudy check`, `--config` by `scalestudy doctor`, site files by `prepare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.harness import Case, Refuse, folder, link, nothing, pipe, raw, run, text
from tests.unit.spec.bad_inputs import laughs

C, M, SITE = "config/config.yaml", "config/machines/lab.yaml", "site.yaml"


def config(lines: str) -> Callable[[Path], object]:
    return text(C, f"machine: lab\nstudies: [s]\n{lines}")


CONFIGS = [
    Case("not there", lambda project: (project / C).unlink(), f"{C}: cannot be read: No such file or directory"),
    Case("a folder", folder(C), f"{C}: is not a file"),
    Case("a pipe", pipe(C), f"{C}: is not a file"),
    Case("a link to a device", link(C, "/dev/zero"), f"{C}: is not a file"),
    Case("empty", raw(C, b""), f"{C}: is empty"),
    Case("a list", text(C, "- machine\n"), f"{C}:1: is not a map of keys to values"),
    Case("Latin-1", raw(C, b"machine: \xf6\n"), f"{C}:1: is not UTF-8 text"),
    Case("NUL", raw(C, b"machine: lab\0\n"), "holds the control character U+0000"),
    Case("aliases that multiply", text(C, laughs(12)), "expands to more than 100,000 values"),
    Case("brackets without end", config(f"paths: {'[' * 5000}\n"), "is nested more than 30 deep"),
    Case("a key twice", config("machine: local\n"), f"{C}:3: key `machine` is here twice"),
    Case("a tab", config("paths:\n\tdata: /x\n"), f"{C}:4: is not valid YAML: a tab"),
    Case("an unknown key", config("stduies: [s]\n"), f"{C}:3: stduies: unknown key `stduies`"),
    Case("an unknown scale", config("scale: papper\n"), f"{C}:3: scale: `papper` is not valid here"),
    Case("an unknown machine", text(C, "machine: lba\n"), "there is no machine `lba`"),
    Case("a machine outside", text(C, "machine: ../../outside/diary\n"), f"{C}:1: machine: must be a word"),
    Case("a campaign outside", config("campaign: ../../x\n"), f"{C}:3: campaign: must be a word"),
    Case("no study of that name", text(C, "machine: lab\nstudies: [t]\n"), "there is no study `t`"),
    Case("studies as a number", text(C, "machine: lab\nstudies: 5\n"), f"{C}:2: studies: must be"),
    Case("a list without studies", text(C, "machine: lab\nstudies: []\n"), f"{C}:2: studies: must have at least 1 value"),
    Case("a study outside", text(C, "machine: lab\nstudies: [../../x]\n"), f"{C}:2: studies[0]: must be a word"),
    Case("a budget below nothing", config("budget_gpu_hours: -1\n"), f"{C}:3: budget_gpu_hours: must be more than 0"),
    Case("a budget without end", config("budget_gpu_hours: .inf\n"), "`.inf` is not a finite number"),
    Case("paths as text", config("paths: /scratch\n"), f"{C}:3: paths: must be a map"),
    Case("a path that is a number", config("paths: {data: 5}\n"), f"{C}:3: paths.data: must be text"),
    Case("a path with a terminal's command", config('paths: {data: "/x\\e[2J"}\n'), "holds a control character"),
    Case("a tag of blanks", config("tags: ['a b']\n"), f"{C}:3: tags[0]: must be a word"),
]  # fmt: skip
WORDS = [
    Case("a word without a value", nothing, "--config", ("scale",)),
    Case("no key", nothing, "--config", ("=mini",)),
    Case("an unknown key", nothing, "--config stduies: unknown key `stduies`", ("stduies=s",)),
    Case("an unknown scale", nothing, "--config scale: `big` is not valid here", ("scale=big",)),
    Case("a list of scales", nothing, "--config scale: ", ("scale=[mini]",)),
    Case("a map of scales", nothing, "--config scale: ", ("scale={mini: 1}",)),
    Case("a machine as a number", nothing, "--config machine: must be text, not `5`", ("machine=5",)),
    Case("a machine outside", nothing, "--config machine: must be a word", ("machine=../../outside/diary",)),
    Case("a campaign outside", nothing, "--config campaign: must be a word", ("campaign=../x",)),
    Case("a study in capitals", nothing, "--config studies[0]: must be a word", ("studies=GPU",)),
    Case("no studies", nothing, "--config studies: must have at least 1 value", ("studies=[]",)),
    Case("tags as a map", nothing, "--config tags: must be a list", ("tags={a: 1}",)),
    Case("a budget that is no number", nothing, "--config budget_gpu_hours: ", ("budget_gpu_hours=nan",)),
    Case("a budget below nothing", nothing, "--config budget_gpu_hours: must be more than 0", ("budget_gpu_hours=-1",)),
    Case("paths as a number", nothing, "--config paths: must be a map", ("paths=5",)),
    Case("settings as a number", nothing, "--config set: must be settings of studies, not `5`", ("set=5",), "accepted"),
    Case("settings as a map", nothing, "--config set: must be settings of studies", ("set={repeats: 5}",), "accepted"),
    Case("settings that are numbers", nothing, "--config set: `1` is not a setting", ("set=[1, 2]",)),
    Case("a setting without a value", nothing, "--config set: `epochs` is not a setting", ("set=epochs",)),
    Case("a setting that is no YAML", nothing, "--config set: train.epochs: ", ("set=train.epochs=[1",)),
    Case("a setting without a key", nothing, "--config set: `a..b=1` is not a setting", ("set=a..b=1",), "unclear"),
    Case("a site file as a number", nothing, "--config site: must be the path of a site file, not `5`", ("site=5",),
         "traceback"),
    Case("a list of site files", nothing, "--config site: must be the path of a site file", ("site=[a]",), "traceback"),
    Case("a site file that is not there", nothing, "nope.yaml: cannot be read: No such file", ("site=nope.yaml",)),
]  # fmt: skip
MACHINES = [
    Case("a folder", folder(M), f"{M}: is not a file"),
    Case("a pipe", pipe(M), f"{M}: is not a file"),
    Case("empty", raw(M, b""), f"{M}: is empty"),
    Case("a list", text(M, "- 1\n"), f"{M}:1: is not a map"),
    Case("Latin-1", raw(M, b"description: \xf6\n"), f"{M}:1: is not UTF-8 text"),
    Case("an unknown key", text(M, "nodse: 2\n"), f"{M}:1: nodse: unknown key `nodse`"),
    Case("no nodes", text(M, "nodes: 0\n"), f"{M}:1: nodes: must be at least 1"),
    Case("a tenth of a node", text(M, "nodes: 1.5\n"), f"{M}:1: nodes: must be a whole number"),
    Case("devices below nothing", text(M, "devices_per_node: -1\n"), f"{M}:1: devices_per_node: must be at least 0"),
    Case("memory that is no number", text(M, "memory_gib: .nan\n"), "`.nan` is not a finite number"),
    Case("memory as text", text(M, "memory_gib: lots\n"), f"{M}:1: memory_gib: must be a number"),
    Case("a peak of an unknown precision", text(M, "peak_tflops: {float31: 1}\n"), f"{M}:1: peak_tflops"),
    Case("published numbers outside", text(M, "published: [../../outside/diary]\n"), f"{M}:1: published[0]: must be a word",
         before="accepted"),
    Case("a transport that is none", text(M, "transport: {within: 'P2P; rm'}\n"), f"{M}:1: transport.within: must be"),
    Case("a queue as a number", text(M, "queues: {gpu: 5}\n"), f"{M}:1: queues.gpu: must be a map"),
    Case("a limit below nothing", text(M, "walltime_limit_h: -1\n"), f"{M}:1: walltime_limit_h: must be more than 0"),
    Case("brackets without end", text(M, f"queues: {'{a: ' * 5000}\n"), "is nested more than 30 deep"),
]  # fmt: skip
SITES = [
    Case("not there", lambda project: (project / SITE).unlink(), "site.yaml: cannot be read: No such file"),
    Case("a folder", folder(SITE), "site.yaml: is not a file"),
    Case("a pipe", pipe(SITE), "site.yaml: is not a file"),
    Case("empty", raw(SITE, b""), "site.yaml: is empty"),
    Case("zeros", raw(SITE, bytes(100)), "holds the control character U+0000"),
    Case("a key twice", text(SITE, "scratch: /a\nscratch: /b\n"), "site.yaml:2: key `scratch` is here twice"),
    Case("a merge key", text(SITE, "a: &a {}\n<<: *a\n"), "site.yaml:2: merge keys"),
    Case("an unknown key", text(SITE, "scrach: /a\n"), "site.yaml:1: scrach: unknown key `scrach`"),
    Case("a scratch folder as a list", text(SITE, "scratch: [/a]\n"), "site.yaml:1: scratch: must be text"),
    Case("space below nothing", text(SITE, "staged_gib: -1\n"), "site.yaml:1: staged_gib: must be more than 0"),
    Case("an unknown launcher", text(SITE, "launcher: sshh\n"), "site.yaml:1: launcher: `sshh` is not valid here"),
    Case("hosts as text", text(SITE, "hosts: a b\n"), "site.yaml:1: hosts: must be a list"),
    Case("a host with a terminal's command", text(SITE, 'hosts: ["\\e]0;x\\a"]\n'), "holds a control character"),
    Case("data roots as a list", text(SITE, "data_roots: [/a]\n"), "site.yaml:1: data_roots: must be a map"),
    Case("a kind of PMI with a blank", text(SITE, "srun_mpi: 'pmix; rm'\n"), "site.yaml:1: srun_mpi: must be"),
    Case("an image without a name", text(SITE, "container: {image: ''}\n"), "site.yaml:1: container.image: "),
    Case("a scheduler as a list", text(SITE, "scheduler: [slurm]\n"), "site.yaml:1: scheduler: must be a map"),
    Case("something that no site lacks", text(SITE, "lacks: [coffee]\n"), "site.yaml:1: lacks[0]: `coffee`"),
]  # fmt: skip
CHECK = ("check",)
DOCTOR = ("doctor", "--profile", "profiles/local")
PREPARE = ("prepare", "--spec", '{"source": "digits"}', "--out", "made/manifest.json")


def test_without_a_fault_the_configuration_is_accepted(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / SITE).write_text("scratch: /tmp\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(project / SITE))
    assert run(CHECK, capsys).status == 0
    assert run(PREPARE, capsys).status == 0


@pytest.mark.parametrize("case", CONFIGS, ids=lambda case: case.name)
def test_a_wrong_configuration_is_refused(case: Case, refuse: Refuse) -> None:
    refuse(case, CHECK)


@pytest.mark.parametrize("case", WORDS, ids=lambda case: case.name)
def test_a_wrong_word_after_config_is_refused(
    case: Case, project: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = Case(case.name, case.make, case.says, tuple(f"--config={word}" for word in case.words), case.before)
    monkeypatch.setenv("SCALESTUDY_SITE", "")  # which the command sets
    refuse(word, DOCTOR)


@pytest.mark.parametrize("case", MACHINES, ids=lambda case: case.name)
def test_a_wrong_machine_is_refused(case: Case, refuse: Refuse) -> None:
    refuse(case, CHECK)


@pytest.mark.parametrize("case", SITES, ids=lambda case: case.name)
def test_a_wrong_site_is_refused(case: Case, project: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / SITE).write_text("scratch: /tmp\n")
    monkeypatch.setenv("SCALESTUDY_SITE", str(project / SITE))
    refuse(case, PREPARE, may_write=("made",))
