"""Archives of results from elsewhere, taken in by `scalestudy import`."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalestudy.files import write_json
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import result_file, run_folder
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from tests.foreign.conftest import Command, Spoil, cases, link, raw
from tests.unit.analysis.fake_results import result_of

FILE, SUMS = "bad.zip", "manifest-sha256.txt"
IMPORT = ("import", FILE, "--as", "good")
Files = dict[str, bytes]


def good() -> Files:
    """Files of a run as `scalestudy export` packs them."""
    run = read_studies(["s"], "mini", Machine())[0].runs[0]
    place = run_folder("local", run.id)
    write_result(result_file("local", run.id), result_of(run))
    write_json(place / "spec.json", run.spec.plain())
    pd.DataFrame({"step": [1, 2]}).to_parquet(place / "steps.parquet")
    files = {str(place / name): (place / name).read_bytes() for name in ("spec.json", "result.json", "steps.parquet")}
    shutil.rmtree("results")
    return {**files, "README.md": b"hello"}


def packed(files: Iterable[tuple[str, bytes]], sums: bool = True, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these files, with digests that fit."""
    files, stream = list(files), io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, data in files:
            archive.writestr(name, data)
        if sums:
            archive.writestr(SUMS, "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files))
    return stream.getvalue()


def archive(change: Callable[[Files], object] = lambda files: None, **options: Any) -> Spoil:
    """An archive of changed files."""

    def make(project: Path) -> None:
        files = good()
        change(files)
        (project / FILE).write_bytes(packed(files.items(), **options))

    return make


def the(end: str, files: Files) -> str:
    return next(name for name in files if name.endswith(end))


def added(name: str, content: bytes = b"x") -> Spoil:
    return archive(lambda files: files.update({name: content}))


def replaced(end: str, change: Callable[[bytes], bytes]) -> Spoil:
    """An archive with one changed file."""
    return archive(lambda files: files.update({the(end, files): change(files[the(end, files)])}))


def resealed(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """An archive with a changed result whose digest fits."""

    def seal(content: bytes) -> bytes:
        plain = json.loads(content)
        change(plain)
        place = Path("sealed.json")
        write_result(place, plain)
        content = place.read_bytes()
        place.unlink()
        return content

    return replaced("result.json", seal)


def as_link(project: Path) -> None:
    """A link to /etc/passwd in place of the result."""
    files, stream = good(), io.BytesIO()
    name = the("result.json", files)
    files[name] = b"/etc/passwd"
    with zipfile.ZipFile(stream, "w") as made:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)
            entry.create_system, entry.external_attr = 3, (0o120777 if path == name else 0o100644) << 16
            made.writestr(entry, data)
        made.writestr(SUMS, "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in files.items()))
    (project / FILE).write_bytes(stream.getvalue())


def twice(project: Path) -> None:
    files = good()
    with pytest.warns(UserWarning, match="Duplicate name"):
        (project / FILE).write_bytes(packed([*files.items(), (the("result.json", files), b"{}")]))


def other_bytes(change: Callable[[bytearray], object], **options: Any) -> Spoil:
    """An archive whose own bytes are changed."""

    def make(project: Path) -> None:
        archive(**options)(project)
        data = bytearray((project / FILE).read_bytes())
        change(data)
        (project / FILE).write_bytes(bytes(data))

    return make


def spoil_content(data: bytearray) -> None:
    begin = data.index(b"spec.json") + len("spec.json")
    data[begin : begin + 4] = b"\xff\xff\xff\xff"


def claim_size(data: bytearray) -> None:
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 0xFFFF_FFF0)


def claim_half_a_gigabyte_each(data: bytearray) -> None:
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", 0x3FFF_FFFF)
        at = data.find(b"PK\x01\x02", at + 1)


def encrypt(data: bytearray) -> None:
    for mark, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        data[data.index(mark) + at] |= 1


def without(end: str) -> Spoil:
    return archive(lambda files: files.pop(the(end, files)))


BROKEN, LEAVES = f"{FILE}: cannot be read as an archive: ", f"{FILE}: holds a path that leaves the project: "
CASES = {
    "not there": (Path.exists, f"{FILE}: no such file"),
    "a device": (link(FILE, "/dev/zero"), f"{FILE}: is not a file"),
    "garbage": (raw(FILE, b"garbage" * 100), BROKEN),
    "spoilt content": (other_bytes(spoil_content), BROKEN),
    "spoilt content, LZMA": (other_bytes(spoil_content, kind=zipfile.ZIP_LZMA), BROKEN),
    "a wrong size": (other_bytes(claim_size), "has 4,294,967,280 bytes"),
    "more than fits into memory": (other_bytes(claim_half_a_gigabyte_each), f"{FILE}: "),
    "encrypted": (other_bytes(encrypt), BROKEN),
    "a path above": (added("results/../../evil"), LEAVES),
    "an absolute path": (added("/etc/evil"), LEAVES),
    "a path of Windows": (added("a\\..\\evil"), LEAVES),
    "a path with an escape sequence": (added("../\x1b[2J"), LEAVES),
    "a link as result": (as_link, " not readable as JSON"),
    "a path twice": (twice, f"{FILE}: holds a path twice"),
    "no digests": (archive(sums=False), f"{FILE}: has no {SUMS}"),
    "a wrong digest": (
        lambda project: (project / FILE).write_bytes(packed([*good().items(), (SUMS, b"0  x\n")], sums=False)),
        "is not what was packed: its digest differs",
    ),
    "no run": (archive(lambda files: [files.pop(name) for name in list(files) if "runs" in name]), "holds no run"),
    "no result": (without("result.json"), "lacks its spec.json or result.json"),
    "a spec that is no JSON": (replaced("spec.json", lambda _: b'{"a":' * 100_000), "spec.json of "),
    "an unknown key in the spec": (replaced("spec.json", lambda _: b'{"rnks": 2}'), "is not one of this version"),
    "the spec of another run": (
        replaced("spec.json", lambda _: b'{"ranks": 2, "strategy": {"name": "allreduce"}}'),
        "is not that of its id",
    ),
    "the result of another run": (resealed(lambda r: r.update(run="x-0123456789ab")), "it is the result of"),
    "the result of another machine": (resealed(lambda r: r.update(machine="abci")), "measured on machine `abci`"),
    "a negative throughput": (resealed(lambda r: r["metrics"].update(throughput_samples_per_s=-5)), "is `-5`"),
    "evaluations of another type": (resealed(lambda r: r.update(evaluations=[5])), "its `evaluations.0` is `5`"),
    "an edited result": (replaced("result.json", lambda data: data.replace(b"100.0", b"900.0")), "changed after"),
    "a table that is none": (replaced("steps.parquet", lambda _: b"PAR1 not"), "is not a Parquet file"),
}


@cases(CASES)
def test_a_wrong_archive_is_refused(spoil: Spoil, message: str, command: Command) -> None:
    command.refuses(spoil, message, IMPORT)


def test_an_undamaged_archive_is_accepted_once(command: Command) -> None:
    archive()(command.project)
    command.accepts(*IMPORT)
    assert len(list(Path("results/local+good/runs").iterdir())) == 1
    command.refuses(Path.exists, "`local+good` has runs of its own here", IMPORT)


def test_a_campaign_outside_the_results_is_refused(command: Command) -> None:
    command.refuses(archive(), "--as", ("import", FILE, "--as", "../../x"))
