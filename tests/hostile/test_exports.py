"""Archives of results from somebody else, by `scalestudy import`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import tarfile
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
from scalestudy.spec.study import Run
from tests.hostile.harness import Case, Refuse, folder, link, nothing, pipe, raw, run
from tests.unit.analysis.fake_results import result_of

FILE, SUMS = "bad.zip", "manifest-sha256.txt"
IMPORT = ("import", FILE, "--as", "good")
Files = dict[str, bytes]


def runs() -> list[Run]:
    return read_studies(["s"], "mini", Machine())[0].runs


def good() -> Files:
    """The files of a run as `scalestudy export` packs them."""
    one = runs()[0]
    write_result(result_file("local", one.id), result_of(one))
    write_json(run_folder("local", one.id) / "spec.json", one.spec.plain())
    table = io.BytesIO()
    pd.DataFrame({"step": [1, 2]}).to_parquet(table)
    place = run_folder("local", one.id)
    found = {str(place / name): (place / name).read_bytes() for name in ("spec.json", "result.json")}
    for path in found:
        Path(path).unlink()
    place.rmdir()
    place.parent.rmdir()
    place.parent.parent.rmdir()
    place.parent.parent.parent.rmdir()
    return {**found, str(place / "steps.parquet"): table.getvalue(), "README.md": b"hello"}


def packed(files: Iterable[tuple[str, bytes]], sums: bool = True, **options: Any) -> bytes:
    """A zip of these files, with digests that fit."""
    files, stream = list(files), io.BytesIO()
    with zipfile.ZipFile(stream, "w", options.get("kind", zipfile.ZIP_DEFLATED)) as archive:
        for name, data in files:
            archive.writestr(name, data)
        if sums:
            archive.writestr(SUMS, "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files))
    return stream.getvalue()


def archive(change: Callable[[Files], object] = lambda files: None, **options: Any) -> Callable[[Path], object]:
    """The archive, with changed files."""

    def make(project: Path) -> None:
        files = good()
        change(files)
        (project / FILE).write_bytes(packed(files.items(), **options))

    return make


def the(end: str, files: Files) -> str:
    return next(name for name in files if name.endswith(end))


def result(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """The result, changed, sealed anew."""

    def make(files: Files) -> None:
        plain = json.loads(files[the("result.json", files)])
        change(plain)
        place = Path("sealed.json")
        write_result(place, plain)
        files[the("result.json", files)] = place.read_bytes()
        place.unlink()

    return archive(make)


def spec(content: bytes) -> Callable[[Path], object]:
    return archive(lambda files: files.update({the("spec.json", files): content}))


def as_another_run(project: Path) -> None:
    """The run under another id, which its result names too."""

    def change(files: Files) -> None:
        old = the("result.json", files).split("/")[3]
        new = f"{old[:-12]}0123456789ab"
        plain = {**json.loads(files[the("result.json", files)]), "run": new}
        write_result(project / "other.json", plain)
        files[the("result.json", files)] = (project / "other.json").read_bytes()
        (project / "other.json").unlink()
        for name in [name for name in files if old in name]:
            files[name.replace(old, new)] = files.pop(name)

    archive(change)(project)


def with_file(name: str, content: bytes = b"x") -> Callable[[Path], object]:
    return archive(lambda files: files.update({name: content}))


def as_link(project: Path) -> None:
    """A link to /etc/passwd in the place of the result; a zip keeps its target as content."""
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


def changed_bytes(change: Callable[[bytearray], object], **options: Any) -> Callable[[Path], object]:
    """The bytes of the archive, changed."""

    def make(project: Path) -> None:
        archive(**options)(project)
        data = bytearray((project / FILE).read_bytes())
        change(data)
        (project / FILE).write_bytes(bytes(data))

    return make


def spoil_deflated(data: bytearray) -> None:
    begin = data.index(b"spec.json") + len("spec.json")
    data[begin : begin + 4] = b"\xff\xff\xff\xff"


def claim_size(data: bytearray) -> None:
    """The directory says that the first file has four gigabytes."""
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 0xFFFF_FFF0)


def encrypt(data: bytearray) -> None:
    for mark, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        begin = data.index(mark)
        data[begin + at] |= 1


def method(data: bytearray) -> None:
    """A way of compression that nobody knows."""
    for mark, at in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        begin = data.index(mark)
        data[begin + at : begin + at + 2] = struct.pack("<H", 77)


def not_utf8(data: bytearray) -> None:
    for mark, flags, name in ((b"PK\x01\x02", 8, 46), (b"PK\x03\x04", 6, 30)):
        begin = data.index(mark)
        data[begin + flags + 1] |= 0x08
        data[begin + name] = 0xFF


def many_large(project: Path) -> None:
    """Five files of a run that say they have half a gigabyte each."""
    files = good()
    table = the("steps.parquet", files)
    files |= {table.replace("steps", name): files[table] for name in ("system", "exchange")}
    data = bytearray(packed(files.items()))
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", 0x1FFF_FFFF)
        at = data.find(b"PK\x01\x02", at + 1)
    (project / FILE).write_bytes(bytes(data))


def as_tar(project: Path) -> None:
    with tarfile.open(project / FILE, "w") as made:
        data = tarfile.TarInfo("../../evil")
        made.addfile(data, io.BytesIO(b""))


BROKEN = f"{FILE}: cannot be read as an archive: "
LEAVES = f"{FILE}: holds a path that leaves the project: "
CASES = [
    Case("not there", nothing, f"{FILE}: no such file"),
    Case("a folder", folder(FILE), f"{FILE}: is not a file", before="unclear"),
    Case("a pipe", pipe(FILE), f"{FILE}: is not a file", before="hang"),
    Case("a device", link(FILE, "/dev/zero"), f"{FILE}: is not a file", before="hang"),
    Case("nothing in it", raw(FILE, b""), BROKEN),
    Case("garbage", raw(FILE, b"garbage" * 100), BROKEN),
    Case("a tar", as_tar, BROKEN),
    Case("gzip", raw(FILE, gzip.compress(b"x" * 1000)), BROKEN),
    Case("cut in half", lambda project: (archive()(project), os.truncate(project / FILE, 500)), BROKEN),
    Case("spoilt within a file", changed_bytes(spoil_deflated), BROKEN, before="traceback"),
    Case("a file of another size than it says", changed_bytes(claim_size), "has 4,294,967,280 bytes"),
    Case("encrypted", changed_bytes(encrypt), BROKEN),
    Case("packed in an unknown way", changed_bytes(method), BROKEN),
    Case("a name that is not UTF-8", changed_bytes(not_utf8), BROKEN, before="traceback"),
    Case("bzip2, spoilt", changed_bytes(spoil_deflated, kind=zipfile.ZIP_BZIP2), BROKEN),
    Case("LZMA, spoilt", changed_bytes(spoil_deflated, kind=zipfile.ZIP_LZMA), BROKEN, before="traceback"),
    Case("more bytes than fit into memory", many_large, f"{FILE}: its results have ", before="accepted"),
    Case("a path above", with_file("../evil"), LEAVES),
    Case("a path above, within", with_file("results/../../evil"), LEAVES),
    Case("a path of the system", with_file("/etc/evil"), LEAVES),
    Case("a path as on Windows", with_file("a\\..\\evil"), LEAVES),
    Case("a path with a terminal's command", with_file("../\x1b[2J"), LEAVES),
    Case("a result that is a link", as_link, " not readable as JSON"),
    Case("a path twice", twice, f"{FILE}: holds a path twice"),
    Case("no digests", archive(sums=False), f"{FILE}: has no {SUMS}"),
    Case("digests that are not text", lambda project: (project / FILE).write_bytes(packed([*good().items(), (SUMS, b"\xff")], sums=False)),
         f"{SUMS} is not text"),
    Case("a digest that differs", lambda project: (project / FILE).write_bytes(
        packed([*good().items(), (SUMS, b"0  x\n")], sums=False)), "is not what was packed: its digest differs"),
    Case("no run", archive(lambda files: [files.pop(name) for name in list(files) if "runs" in name]), f"{FILE}: holds no run"),
    Case("results of what is no machine", archive(lambda files: [
        files.update({name.replace("results/local/", "results/data/"): files.pop(name)}) for name in list(files) if "runs" in name]),
         "`data` is not a machine", before="accepted"),
    Case("no result", archive(lambda files: files.pop(the("result.json", files))), "lacks its spec.json or result.json"),
    Case("no spec", archive(lambda files: files.pop(the("spec.json", files))), "lacks its spec.json or result.json"),
    Case("a spec that is no JSON", spec(b"{"), "spec.json of "),
    Case("a spec nested without end", spec(b'{"a":' * 100_000), "spec.json of "),
    Case("a spec as a list", spec(b"[1]"), "is not one of this version"),
    Case("a spec with an unknown key", spec(b'{"rnks": 2}'), "is not one of this version"),
    Case("the spec of another run", spec(b'{"ranks": 2, "strategy": {"name": "allreduce"}}'), "is not that of its id"),
    Case("a run by another name", as_another_run, "is not that of its id", before="accepted"),
    Case("a digest of something else in it", archive(lambda files: files.update({the("result.json", files): json.dumps(
        {**{k: v for k, v in json.loads(files[the("result.json", files)]).items() if k != "digest"},
         "emulated_storage": {"digest": "x"}}).encode()})), "has no digest", before="accepted"),
    Case("evaluations that are numbers", result(lambda r: r.update(evaluations=[5])), "its `evaluations.0` is `5`",
         before="accepted"),
    Case("what was resolved as a list", result(lambda r: r.update(resolved=[1])), "its `resolved` is `[1]`", before="accepted"),
    Case("another machine's name", result(lambda r: r.update(machine="abci")), "it was measured on machine `abci`"),
    Case("the result of another run", result(lambda r: r.update(run="x-0123456789ab")), "it is the result of"),
    Case("a throughput below nothing", result(lambda r: r["metrics"].update(throughput_samples_per_s=-5)), "is `-5`"),
    Case("an edited result", archive(lambda files: files.update(
        {the("result.json", files): files[the("result.json", files)].replace(b"100.0", b"900.0")})), "was changed after it was written"),
    Case("a result without a digest", archive(lambda files: files.update({the("result.json", files): json.dumps(
        {k: v for k, v in json.loads(files[the("result.json", files)]).items() if k != "digest"}).encode()})), "has no digest"),
    Case("a reason that clears the screen", archive(lambda files: files.update({the("result.json", files): files[
        the("result.json", files)].replace(b'"reason": null', b'"reason": "\\u001b[2J"')})), "contains the character \\u001b",
         before="unclear"),
    Case("a table that is none", archive(lambda files: files.update({the("steps.parquet", files): b"PAR1 not"})), "is not a Parquet file"),
    Case("a table that is cut", archive(lambda files: files.update(
        {the("steps.parquet", files): files[the("steps.parquet", files)][:-20]})), "is not a Parquet file"),
    Case("a name above", archive(), "--as", words=("--as", "../../x")),
    Case("a name with a line break", archive(), "--as", words=("--as", "good\n"), before="accepted"),
]  # fmt: skip


def test_without_a_fault_the_archive_is_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive()(project)
    assert run(IMPORT, capsys).status == 0
    assert len(list(Path("results/local+good/runs").iterdir())) == 1
    assert not Path("README2.md").exists()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_archive_is_refused(case: Case, refuse: Refuse) -> None:
    refuse(case, IMPORT)


def test_results_are_not_mixed_with_those_that_are_here(refuse: Refuse) -> None:
    archive()(refuse.project)
    assert run(IMPORT, refuse.capsys).status == 0
    refuse(Case("a name that is taken", nothing, "`local+good` has runs of its own here"), IMPORT)
