"""Every parser of what others may write, as a function of bytes that may only accept them, or refuse them by a message.

Used by test_fuzz.py with hypothesis, and by tests/soak/fuzz.py with hypothesis and atheris, for as long as one likes. A
target raises nothing but the errors of users; anything else is a finding. `KEPT` has what was found, which test_fuzz.py
tries again each time.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scalestudy.cluster.doctor.facts import facts_of
from scalestudy.cluster.ledger.actual import read_plans
from scalestudy.cluster.ledger.used import last_causes, read_ledger
from scalestudy.cluster.ledger.waits import read_waits
from scalestudy.cluster.plan.expected import read_history
from scalestudy.commands.one_run import checked_run, from_settings
from scalestudy.data.decode import images
from scalestudy.data.index import Index, mapped_index, write_index
from scalestudy.data.manifest import Manifest, read_manifest, write_manifest
from scalestudy.data.sources.chest_xray14 import _table
from scalestudy.data.sources.imagenet import _by_stem
from scalestudy.data.tar import END, entries, member
from scalestudy.errors import UNSEEN, UserError
from scalestudy.files import read_table
from scalestudy.launch.channel import _message
from scalestudy.results.stored import checked_result, write_result
from scalestudy.results.warnings import nccl_transports
from scalestudy.spec.config import Site, checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.ids import run_id
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.sizes import MOST_BYTES, in_bytes
from scalestudy.spec.study import StudySpec
from scalestudy.spec.yamlfile import parse_yaml
from scalestudy.training import checkpoint
from scalestudy.training.report import Report
from snakemake_executor_plugin_multinode.runstate import read_run_state
from snakemake_logger_plugin_scalestudy.progress import Progress
from tests.hostile import archives, test_exports, test_schedulers
from tests.unit.cluster.recorded_sites import PBS, SGE, SLURM, Recorded
from tests.unit.spec.test_bad_input import VALID

LAB = Machine(nodes=2, devices_per_node=4, memory_gib=16.0)
SPEC = RunSpec.model_validate_json('{"data": {"source": "digits"}, "ranks": 2, "strategy": {"name": "allreduce"}}')
RESULT = {"run": run_id(SPEC), "status": "valid", "reason": None, "spec": SPEC.plain(), "metrics": {"loss": 0.5},
          "kinds": {}, "instrument": {"cpu": "a"}, "unchecked": [], "machine": "local"}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One parser."""

    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    """Inputs that are right, from which wrong ones are made."""


@cache
def place() -> Path:
    """A folder in memory, for parsers that read files; it is gone with the process."""
    import atexit

    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="fuzz-of-scalestudy-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def file(name: str, data: bytes) -> Path:
    """These bytes as a file."""
    path = place() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def said(work: Callable[[], object]) -> None:
    """What a user is told is text that a terminal shows as it is."""
    try:
        work()
    except UserError as error:
        assert str(error) and not UNSEEN.search(str(error)), ascii(str(error))


def text_of(data: bytes) -> str:
    return data.decode(errors="replace")


# One function per parser


def study(data: bytes) -> None:
    def work() -> None:
        document = parse_yaml(text_of(data), "s.yaml")
        expand(document, checked(StudySpec, document), "s", "paper", LAB, "lab")

    said(work)


def machine(data: bytes) -> None:
    said(lambda: checked(Machine, parse_yaml(text_of(data), "m.yaml")))


def site(data: bytes) -> None:
    said(lambda: checked(Site, parse_yaml(text_of(data), "site.yaml")))


def settings(data: bytes) -> None:
    words = tuple(text_of(data).split("\n"))
    said(lambda: checked_run(from_settings(words, "try"), "try"))


def size(data: bytes) -> None:
    def work() -> None:
        spec = checked_run({"data": {"source": "digits", "scale": text_of(data)}}, "x")
        scale = in_bytes(spec, LAB).data.scale
        assert isinstance(scale, str) and 0 < float(scale.partition(" ")[0]) * 1000 <= MOST_BYTES * 1.01

    said(work)


def findings(data: bytes) -> None:
    said(lambda: _table(file("Data_Entry_2017.csv", data)))


def classes(data: bytes) -> None:
    said(lambda: _by_stem(text_of(data).splitlines(), Path("x.csv")))


def published(data: bytes) -> None:
    said(lambda: read_table(file("t.csv", data), ("model",), wholes=("batch",), numbers=("images_per_s",)))


def manifest(data: bytes) -> None:
    said(lambda: read_manifest(file("manifest.json", data)))


def index(data: bytes) -> None:
    def work() -> None:
        found = mapped_index(file("index.npz", data), "train")
        for sample in range(len(found)):
            name = found.path(sample)
            assert not name.startswith("/") and ".." not in name.split("/")

    said(work)


def result(data: bytes) -> None:
    path = file("runs/r/result.json", data)
    found = checked_result(path, RESULT["run"], SPEC, "local")
    assert found is not None and found["status"] in ("valid", "invalid", "skipped")
    if found["status"] != "invalid":
        assert found["run"] == RESULT["run"] and RunSpec.model_validate(found["spec"], strict=False) == SPEC
    json.dumps(found).encode()
    assert not UNSEEN.search(str(found.get("reason")))


def spec(data: bytes) -> None:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return
    said(lambda: run_id(checked_run(plain, "spec.json")))


def lines(data: bytes) -> None:
    path = file("lines.jsonl", data)
    for found in read_history(path):
        assert found.seconds >= 0
    read_ledger(path), read_waits(path), last_causes(path)
    file("results/local/plans.jsonl", data)
    before = Path.cwd()
    os.chdir(place())
    try:
        read_plans("local")
    finally:
        os.chdir(before)


def state(data: bytes) -> None:
    read_run_state(file("state.json", data), None)


def progress(data: bytes) -> None:
    try:
        found = Progress.of_plain(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    list(found.of("running")), found.runs, found.unfinished


def tar(data: bytes) -> None:
    path = file("x.tar", data)
    descriptor = os.open(path, os.O_RDONLY)
    try:

        def work() -> None:
            before = -1
            for one in entries(descriptor, "x.tar"):
                assert before < one.start <= one.start + one.size <= len(data)
                before = one.start

        said(work)
    finally:
        os.close(descriptor)


def picture(data: bytes) -> None:
    try:
        if data[:2] in (b"\xff\xd8", b"\x89P"):
            height, width = images.header(data)
            if height * width < 1_000_000:
                images.decode(data)
    except images.UNREADABLE:
        pass


def checkpoints(data: bytes) -> None:
    folder = place() / "step-000000007"
    if not folder.exists():
        shutil.copytree(_checkpoint(), folder)
    (folder / "checkpoint.json").write_bytes(data)
    said(lambda: checkpoint.facts_to_init_from(folder, SPEC))
    checkpoint.damage_of(folder)


def tensors(data: bytes) -> None:
    """Bytes in the place of tensors, with a checksum that fits."""
    import xxhash

    from scalestudy.files import canonical_json

    folder = place() / "step-000000008"
    if not folder.exists():
        shutil.copytree(_checkpoint(), folder)
    facts = json.loads((_checkpoint() / "checkpoint.json").read_text())["facts"]
    facts |= {"step": 8}
    facts["files"]["state.safetensors"] = {"bytes": len(data), "xxh3": xxhash.xxh3_128_hexdigest(data)}
    digest = xxhash.xxh3_128_hexdigest(canonical_json(facts).encode())
    (folder / "checkpoint.json").write_text(json.dumps({"xxh3": digest, "facts": facts}))
    (folder / "state.safetensors").write_bytes(data)
    if checkpoint.damage_of(folder) is None:
        checkpoint.read_state(folder)


def archive(data: bytes) -> None:
    import importlib

    read = importlib.import_module("scalestudy.commands.import").read_archive
    said(lambda: read(file("x.zip", data)))


def nccl(data: bytes) -> None:
    for sender, receiver, via in nccl_transports(text_of(data)):
        assert sender < 10**9 and receiver < 10**9 and len(via) < 200


def peer(data: bytes) -> None:
    message = _message(data)
    assert message is None or isinstance(message, dict)


def scheduler(source: str) -> Callable[[bytes], None]:
    kind, command, outputs, jobs = test_schedulers.KINDS[source]

    def run(data: bytes) -> None:
        found = test_schedulers.statuses(kind, {**outputs, command: text_of(data)}, jobs)
        if isinstance(found, str):
            assert found.isprintable()

    return run


def cluster(kind: str, recorded: dict[str, str]) -> Callable[[bytes], None]:
    commands = sorted(recorded)

    def run(data: bytes) -> None:
        if data:
            command = commands[data[0] % len(commands)]
            facts_of(kind, Recorded({**recorded, command: text_of(data[1:])}))

    return run


# Inputs that are right


@cache
def _checkpoint() -> Path:
    folder = place() / "made"
    part = checkpoint.CheckpointPart(checkpoint.random_states(), Report(rank=0).plain(), {"w": torch.zeros(3)})
    facts = {"run": "r", "spec": SPEC.plain(), "global_batch": SPEC.global_batch, "ranks": 1, "cause": "", "written": "",
             "code": "c"}  # fmt: skip
    checkpoint.write(folder, 7, 0, part, facts, lambda value: [value])
    return checkpoint.step_folder(folder, 7)


def made(name: str, write: Callable[[Path], object]) -> list[bytes]:
    write(place() / name)
    return [(place() / name).read_bytes()]


def archived() -> list[bytes]:
    before, folder = Path.cwd(), place() / "project"
    (folder / "config/studies").mkdir(parents=True, exist_ok=True)
    (folder / "config/studies/s.yaml").write_text("question: How?\nscales: {mini: {}}\n")
    os.chdir(folder)
    try:
        files = test_exports.good()
    finally:
        os.chdir(before)
    return [test_exports.packed(files.items()), test_exports.packed(files.items(), kind=zipfile.ZIP_STORED)]


def nameless() -> bytes:
    """An archive of which a file has no name: zipfile cuts names off at a zero."""
    return test_exports.packed([("@", b"x")], sums=False).replace(b"@", b"\0")


def indexed() -> list[bytes]:
    one = Index.of(["a/b.jpg", "c.jpg"], np.arange(2), np.arange(2), np.arange(2, dtype=np.uint32))
    return made("seed.npz", lambda path: write_index(path, {"train": one, "test": one}))


def json_of(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


def of_text(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


MANIFEST = Manifest("digits-0123456789ab", "ready", {"source": "digits"}, bulk="bulk", classes=10)
LEDGER = (
    {"event": "submitted", "name": "a", "time_s": 1.0, "job": f"train {RESULT['run']}", "gpu_hours": 2, "gpus": 4},
    {"event": "ended", "name": "a", "time_s": 9.0, "used_s": 3, "cause": "finished"},
    {"run": RESULT["run"], "status": "valid", "wall_s": 5.0, "spec": SPEC.plain(), "throughput_samples_per_s": 5.0},
    {"run": "r", "nodes": 1, "gpus": 4, "requested_s": 60, "low_s": 1.0, "high_s": 2.0, "kind": "repeats"},
)
TASK = {"output": "a", "rule": "train", "name": "a", "study": "s", "expected": {"low_s": 1, "high_s": 2, "source": "x"}}
TARGETS: dict[str, Target] = {
    "study": Target(study, of_text(VALID)),
    "machine": Target(machine, of_text("nodes: 2\nprices: {currency: EUR, per_node_hour: 2}\nqueues: {a: {most_nodes: 2}}\n")),
    "site": Target(site, of_text("scratch: $TMPDIR\nhosts: [a, b]\ncontainer: {image: x.sif}\nscheduler: {kind: slurm}\n")),
    "settings": Target(settings, of_text("strategy=allreduce\nranks=2\nmodel={name: mlp, hidden: 3}\ntrain.epochs=3", "model.import=a:B")),
    "size": Target(size, of_text("64 MiB", "2x node memory", "1.5 GB")),
    "findings": Target(findings, of_text(f"{archives.HEAD}\na.png,Mass|Edema,1\nb.png,No Finding,2\n")),
    "classes": Target(classes, of_text("ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 85 1 499 272\n")),
    "published": Target(published, of_text('model,accelerator,batch,images_per_s\nresnet50,k80,32,49.5\n"a,b",c,1,.5e3\n')),
    "manifest": Target(manifest, lambda: made("seed.json", lambda path: write_manifest(path, MANIFEST))),
    "index": Target(index, indexed),
    "result": Target(result, lambda: made("seed-result.json", lambda path: write_result(path, RESULT))),
    "spec": Target(spec, json_of(SPEC.plain(), {**SPEC.plain(), "batch": {"global": 64}, "faults": [{"kind": "slow_rank", "rank": 0}]})),
    "lines": Target(lines, lambda: [b"\n".join(json.dumps(line).encode() for line in LEDGER)]),
    "state": Target(state, json_of({"state": "running", "progress": 5, "cause": "saved"})),
    "progress": Target(progress, json_of({"format": 1, "at_once": 1, "command": "", "began": 1, "host": "", "process": "", "tasks": [TASK]})),
    "tar": Target(tar, lambda: [archives.tar_of({"a.jpg": b"x" * 600, "b.jpg": b"y"}),
                                archives.headed(b"x", b"%011o" % 26, b"x", b"26 path=a/other/name.JPEG\n") + member("a", b"1") + END]),
    "picture": Target(picture, lambda: [archives.picture(), archives.picture(form="PNG")]),
    "checkpoint": Target(checkpoints, lambda: [(_checkpoint() / "checkpoint.json").read_bytes()]),
    "tensors": Target(tensors, lambda: [(_checkpoint() / "state.safetensors").read_bytes()]),
    "archive": Target(archive, archived),
    "nccl": Target(nccl, of_text("h1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nRing 01 : 16 -> 0 [send] via NET/IB/0\n")),
    "peer": Target(peer, json_of({"token": "x", "index": 1, "ready": 5})),
    **{source: Target(scheduler(source), of_text(test_schedulers.KINDS[source][2][test_schedulers.KINDS[source][1]]))
       for source in test_schedulers.KINDS},
    **{f"cluster {kind}": Target(cluster(kind, recorded), lambda recorded=recorded: [  # type: ignore[misc]
        bytes([number]) + out.encode() for number, (_, out) in enumerate(sorted(recorded.items()))])
       for kind, recorded in {"slurm": SLURM, "pbs": PBS, "sge": SGE}.items()},
}  # fmt: skip
TOKENS = (
    b"", b"\0", b"\xff", b"\x80", b"\x1b[2J", b"\xc2\xb2", b"\xe2\x80\xae", b"\\ud800", b"\\u001b", b"-1", b"0", b"1e999", b"NaN",
    b"Infinity", b"null", b"true", b"[]", b"{}", b'""', b"[", b"{", b"9" * 5000, b"[" * 2000, b'{"a":' * 1200, b"../../x", b"/etc/x",
    b"\n", b"\t", b"\r\n", b"\x1f", b"|", b"=", b":", b",", b'"', b"'", b"*a", b"&a ", b"!!bool ", b"!!int ", b"<<: ", b"- ", b"? ",
    b"% ", b"99999999999999999999", b".", b"-", b"<!ENTITY a 'b'>", b"&a;", b"]]>", b"PK\x01\x02", b"PK\x05\x06", b"\xff\xd9",
)  # fmt: skip
"""What edits put in."""
KEPT: dict[str, list[bytes]] = {
    "study": [
        b"question: How?\nbase:\n  optimiser: {nesterov: !!bool yes}\n",
        b'question: "\\u202e"\n',
        b"base: " + b"[" * 20_000,
    ],
    "size": [b"1.2.3 MiB", b"... MiB", b"0x node memory", b"1e3 MiB"],
    "tar": [
        archives.headed(b"a", b"-0000001000") + END,
        archives.headed(b"x", b"%011o" % 9, b"x", b"0 path=a\n") + END,
    ],
    "index": [
        indexed()[0].replace(b"), }", b"),  ", 1),
        indexed()[0].replace(b"|u1", b"<u2", 1).replace(b"a/b.jpgc.jpg", b"/apj.bgc.jpg", 1),
    ],
    "result": [b'{"a":' * 900 + b"1" + b"}" * 900, b'{"reason": "\\ud800"}'],
    "manifest": [b'{"a":' * 900 + b"1" + b"}" * 900],
    "archive": [nameless()],
    "lines": [b"[]", b"7", b'"x"', b'{"event": "ended", "name": {}, "time_s": 1}'],
    "checkpoint": [b"[" * 100_000, b'{"facts":' * 900 + b"1" + b"}" * 900],
    "peer": [b"[" * 500_000, b'{"token": "\\ud800"}'],
    "nccl": [b"Ring 00 : " + b"1" * 1_000_000, b"Channel 0 : " + b"1" * 5000 + b" -> 1 via P2P"],
    "qacct": [b"=====\njobnumber 8\nfailed x\njobname train.b.ba9876543210\n"],
    "qstat -f": [b"Job Id: 8.head\x1fJob_Name=train.b.ba9876543210\x1fjob_state=F\x1fExit_status=x\n"],
    "cluster sge": [b"\x07\n", b"\x07HOSTNAMES NCPU\na 1\n"],
    "cluster pbs": [b"\x00" + b'{"nodes": [1]}', b"\x00[]"],
}
"""Inputs that broke an earlier version, or would break a careless one."""
