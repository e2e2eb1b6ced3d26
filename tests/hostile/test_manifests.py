"""Manifests, and the indexes and lists beside them, that somebody else may have written."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalestudy.data.digests import digests_of
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import read_manifest
from scalestudy.data.stage.wanted import Share, wanted
from scalestudy.errors import UserError
from scalestudy.files import write_sealed
from scalestudy.spec.ids import dataset_id
from scalestudy.spec.run import Loader, RunSpec
from tests.hostile import archives
from tests.hostile.harness import Case, Refuse, digest, folder, pipe, raw, run, text

DIGITS = dataset_id(RunSpec.model_validate_json('{"data": {"source": "digits"}}').data)
M = f"results/data/{DIGITS}/manifest.json"
PREPARE = ("prepare", "--spec", '{"source": "digits"}', "--out", M)
TRY = ("try", "data.source=digits", "--out", "made")
HERE = f"{M}: "


def sealed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """The manifest, changed, with a digest that fits."""

    def make(project: Path) -> None:
        plain = json.loads((project / M).read_text())
        change(plain)
        write_sealed(project / M, plain)

    return make


def edited(old: str, new: str) -> Callable[[Path], object]:
    def make(project: Path) -> None:
        content = (project / M).read_text()
        assert old in content
        (project / M).write_text(content.replace(old, new))

    return make


NOT_ONE = "is not a manifest: "
CASES = [
    Case("nothing in it", raw(M, b""), HERE + "not readable as JSON"),
    Case("garbage", raw(M, b"\x80garbage"), HERE + "not readable as JSON"),
    Case("cut", lambda project: (project / M).write_text((project / M).read_text()[:200]), HERE + "not readable as JSON"),
    Case("a list", text(M, "[]"), HERE + "is not what belongs there", before="traceback"),
    Case("a number", text(M, "7"), HERE + "is not what belongs there", before="traceback"),
    Case("an empty map", text(M, "{}"), HERE + "has no digest"),
    Case("a map of nothing known", sealed(lambda m: [m.clear(), m.update(id="x")]), HERE + NOT_ONE),
    Case("nested without end", text(M, "[" * 100_000), HERE + "not readable as JSON"),
    Case("nested 900 deep", text(M, '{"a":' * 900 + "1" + "}" * 900), HERE, before="traceback"),
    Case("five thousand digits", text(M, f'{{"seconds": {"9" * 5000}}}'), HERE + "not readable as JSON"),
    Case("an infinity", text(M, '{"seconds": Infinity}'), HERE + "not readable as JSON: Infinity is not a value of JSON"),
    Case("a folder", folder(M), HERE + "is not a file", before="unclear"),
    Case("a pipe", pipe(M), HERE + "is not a file", before="hang"),
    Case("an edited number", edited('"classes": 10', '"classes": 9'), HERE + "was changed after it was written"),
    Case("an edited folder", edited('"bulk": "bulk"', '"bulk": "/etc"'), HERE + "was changed after it was written"),
    Case("a folder of the system", sealed(lambda m: m.update(bulk="/etc")), HERE + NOT_ONE + "`bulk` is /etc"),
    Case("a folder above", sealed(lambda m: m.update(bulk="../../../../outside")), HERE + NOT_ONE + "`bulk` points to"),
    Case("another folder of this name", sealed(lambda m: m.update(bulk=f"/tmp/{DIGITS}", index="")),
         "which is not below `paths.data`"),
    Case("an index outside", sealed(lambda m: m.update(index="../../x.npz")), HERE + NOT_ONE + "`index` points to ../../x.npz"),
    Case("containers outside", sealed(lambda m: m.update(containers={"train": ["../../x.tar"]})), "outside `bulk`"),
    Case("a container of the system", sealed(lambda m: m.update(containers={"train": ["/etc/x.tar"]})), "outside `bulk`"),
    Case("the id of other data", sealed(lambda m: m.update(id="digits-0123456789ab")), HERE),
    Case("an id that is a path", sealed(lambda m: m.update(id="../../x-0123456789ab")), HERE + NOT_ONE + "`id`"),
    Case("the options of other data", sealed(lambda m: m.update(spec={"source": "synthetic"})), HERE + "its `spec` is that of"),
    Case("options of no data", sealed(lambda m: m.update(spec={"source": "coffee"})), HERE + NOT_ONE + "`spec`"),
    Case("classes below nothing", sealed(lambda m: m.update(classes=-1)), HERE + NOT_ONE + "`classes`"),
    Case("classes as text", sealed(lambda m: m.update(classes="10")), HERE + NOT_ONE + "`classes`"),
    Case("samples below nothing", sealed(lambda m: m["train"].update(samples=-5)), HERE + NOT_ONE + "`train.samples`"),
    Case("an unknown status", sealed(lambda m: m.update(status="great")), HERE + NOT_ONE + "`status`"),
    Case("an unknown format", sealed(lambda m: m.update(format="pickle")), HERE + NOT_ONE + "`format`"),
    Case("an unknown key", sealed(lambda m: m.update(setup="rm")), HERE + NOT_ONE + "`setup`"),
    Case("a terminal's command", lambda project: (project / M).write_text('{"reason": "\\u001b[2J"}'),
         HERE + "contains the character \\u001b", before="accepted"),
    Case("half of a character", lambda project: (project / M).write_text('{"reason": "\\ud800"}'),
         HERE + "contains the character \\ud800", before="unclear"),
]  # fmt: skip


def test_without_a_fault_the_manifest_is_accepted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PREPARE, capsys).status == 0
    found = read_manifest(project / M)
    assert len(open_dataset(project / M, "train").files) == 1 and found.classes == 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_manifest_is_refused(case: Case, refuse: Refuse) -> None:
    assert run(PREPARE, refuse.capsys).status == 0
    refuse(case, TRY, may_write=("made",))


PICTURES = archives.spec("image_folder", preprocess="resized", resize=8)
SHARDS = archives.spec("image_folder", preprocess="resized", resize=8, shard={"format": "tar", "mib": 0.002})
MADE, INDEX = Path("made/manifest.json"), Path("made/bulk/index.npz")


def fit_digests() -> None:
    """The manifest says of its files what they are now, as somebody can make it who means harm."""
    plain = json.loads(MADE.read_text())
    plain["digests"] = digests_of(MADE.parent / "bulk", plain["digests"])
    write_sealed(MADE, plain)


def arrays(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """The index, with other arrays."""

    def make(_project: Path) -> None:
        with np.load(INDEX) as found:
            fields = dict(found)
        change(fields)
        with open(INDEX, "wb") as stream:
            np.savez(stream, **fields)

    return make


def swapped_in_place(_project: Path) -> None:
    place = MADE.with_name("index.npz")
    fields = dict(np.load(place))
    fields["train_labels"] = fields["train_labels"][::-1].copy()
    with open(place, "wb") as stream:
        np.savez(stream, **fields)


def names(*paths: str) -> Callable[[dict[str, Any]], object]:
    def change(fields: dict[str, Any]) -> None:
        coded = [path.encode() for path in paths]
        fields["train_names"] = np.frombuffer(b"".join(coded), np.uint8)
        fields["train_offsets"] = np.cumsum([0, *map(len, coded)], dtype=np.int64)

    return change


def compressed(_project: Path) -> None:
    with np.load(INDEX) as found:
        np.savez_compressed(INDEX, **found)


BAD_INDEX = "index.npz: the index cannot be read: "
INDEXES = [
    Case("not there", lambda _project: INDEX.unlink(), BAD_INDEX),
    Case("garbage", lambda _project: INDEX.write_bytes(b"PK\x03\x04garbage"), BAD_INDEX),
    Case("cut", lambda _project: INDEX.write_bytes(INDEX.read_bytes()[:300]), BAD_INDEX),
    Case("compressed", compressed, BAD_INDEX),
    Case("an image outside", arrays(names("../../x", "b", "c", "d")), BAD_INDEX + "sample 0 is named outside the data",
         before="damage"),
    Case("an image outside, among others", arrays(names("a..b", "b", "x/../../y", "d")), BAD_INDEX + "sample 2 is named outside",
         before="damage"),
    Case("an image of the system", arrays(names("a", "b", "/etc/x.jpg", "d")), BAD_INDEX + "it names a file by its place",
         before="damage"),
    Case("names that end early", arrays(lambda f: f.update(train_offsets=np.array([0, 1, 2, 3, 4]))), BAD_INDEX + "its names do not",
         before="traceback"),
    Case("names that go backwards", arrays(lambda f: f["train_offsets"].__setitem__(2, 0)), BAD_INDEX + "its names do not",
         before="traceback"),
    Case("a name too few", arrays(names("a", "b", "c")), BAD_INDEX + "it has 4 offsets of 4 samples", before="traceback"),
    Case("a size below nothing", arrays(lambda f: f["train_bytes"].__setitem__(0, -1)), BAD_INDEX + "one of its bytes is below 0",
         before="traceback"),
    Case("another size", arrays(lambda f: f["train_bytes"].__setitem__(0, 1 << 60)), "bytes of samples, the manifest", before="traceback"),
    Case("a size too few", arrays(lambda f: f.update(train_bytes=f["train_bytes"][:3])), BAD_INDEX + "it has 3 bytes",
         before="traceback"),
    Case("a label below nothing", arrays(lambda f: f["train_labels"].__setitem__(0, -1)), "a sample has the label -1"),
    Case("a label beyond the classes", arrays(lambda f: f["train_labels"].__setitem__(0, 9)), "a sample has the label 9"),
    Case("labels as text", arrays(lambda f: f.update(train_labels=np.array(["a"] * 4))), BAD_INDEX + "its labels are",
         before="traceback"),
    Case("labels of objects", arrays(lambda f: f.update(train_labels=np.array([{}] * 4, object))), BAD_INDEX, before="damage"),
    Case("sizes as floats", arrays(lambda f: f.update(train_bytes=f["train_bytes"] * 1.0)), BAD_INDEX + "its bytes are",
         before="accepted"),
    Case("samples too few", arrays(lambda f: [f.update({k: v[:3]}) for k, v in f.items() if k.startswith("train_") and len(v) == 4]),
         BAD_INDEX),
]  # fmt: skip


@pytest.mark.parametrize("case", INDEXES, ids=lambda case: case.name)
def test_a_wrong_index_is_refused(case: Case, refuse: Refuse) -> None:
    archives.folders(refuse.project / "pictures")
    assert run(PICTURES, refuse.capsys).status == 0
    open_dataset(MADE, "train")
    case.make(refuse.project)
    fit_digests()
    before = digest(refuse.project.parent)
    with pytest.raises(UserError) as raised:
        open_dataset(MADE, "train")
    refuse.note(case, str(raised.value))
    assert case.says in str(raised.value)
    assert digest(refuse.project.parent) == before


def test_an_index_of_more_shards_than_there_are_is_refused_before_they_are_listed(refuse: Refuse) -> None:
    archives.folders(refuse.project / "pictures")
    assert run(SHARDS, refuse.capsys).status == 0
    open_dataset(MADE, "train")
    arrays(lambda fields: fields["train_shard"].__setitem__(0, 2**31 - 1))(refuse.project)
    fit_digests()
    with pytest.raises(UserError, match="the index has 2,147,483,648 shards, the manifest "):
        open_dataset(MADE, "train")


def swapped_labels(fields: dict[str, Any]) -> None:
    fields["train_labels"] = fields["train_labels"][::-1].copy()


CHANGED = {
    "labels by each other's pictures": (PICTURES, "index.npz", arrays(swapped_labels)),
    "the list of shards": (SHARDS, "test.json", lambda _project: Path("made/bulk/test.json").write_text("{}")),
    "labels of tensors": (("prepare", "--spec", '{"source": "digits"}', "--out", str(MADE)), "train_labels.npy",
                          lambda _project: np.save("made/bulk/train_labels.npy", np.load("made/bulk/train_labels.npy")[::-1])),
    "labels of pixels": (archives.spec("image_folder", preprocess="raw", resize=8), "train_labels.npy",
                         lambda _project: np.save("made/bulk/train_labels.npy", np.load("made/bulk/train_labels.npy")[::-1])),
    "the index of pictures used where they lie": (archives.spec("image_folder"), "made/index.npz", swapped_in_place),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGED)
def test_what_says_what_samples_are_is_held_against_its_digest_and_made_again(kind: str, refuse: Refuse) -> None:
    words, name, change = CHANGED[kind]
    archives.folders(refuse.project / "pictures")
    assert run(words, refuse.capsys).status == 0
    before = digest(refuse.project / "made")
    change(refuse.project)
    with pytest.raises(
        UserError, match=rf"{name}: is not what was prepared: its digest is not the one in the manifest"
    ) as said:
        opened_for(name)
    refuse.note(Case(f"changed: {kind}", raw("", b""), "", before="accepted"), str(said.value))
    assert run(words, refuse.capsys).status == 0
    assert {path: what for path, what in digest(refuse.project / "made").items() if "manifest" not in path} == {
        path: what for path, what in before.items() if "manifest" not in path
    }


def opened_for(name: str) -> None:
    """Uses the data as what reads that file does."""
    if name == "test.json":
        wanted(MADE, read_manifest(MADE), Share(), lambda name: 0)
    else:
        open_dataset(MADE, "train")


def test_values_of_an_array_are_looked_at_where_all_of_them_are_read(refuse: Refuse) -> None:
    assert run(("prepare", "--spec", '{"source": "digits"}', "--out", str(MADE)), refuse.capsys).status == 0
    open_dataset(MADE, "train", Loader(mode="memory"))
    values = np.load("made/bulk/train.npy")
    np.save("made/bulk/train.npy", values[::-1])
    open_dataset(MADE, "train")
    with pytest.raises(UserError, match=r"train\.npy: is not what was prepared: the digest of its values"):
        open_dataset(MADE, "train", Loader(mode="memory"))


LIST = Path("made/bulk/test.json")


def rows(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], object]:
    """The list of held-out shards, changed."""

    def make(_project: Path) -> None:
        content = json.loads(LIST.read_text())
        change(content["shards"])
        LIST.write_text(json.dumps(content))

    return make


NO_LIST = "test.json: is not the list of the "
STAGED = [
    Case("garbage", lambda _project: LIST.write_text("garbage"), "test.json: not readable as JSON"),
    Case("a list", lambda _project: LIST.write_text("[]"), NO_LIST, before="traceback"),
    Case("no shards", lambda _project: LIST.write_text("{}"), NO_LIST, before="traceback"),
    Case("a shard that would be copied elsewhere", rows(lambda r: r[0].update(name="../../../evil")), NO_LIST, before="damage"),
    Case("a shard of the system", rows(lambda r: r[0].update(name="/etc/passwd")), NO_LIST, before="damage"),
    Case("a shard twice", rows(lambda r: r.append(r[0])), NO_LIST, before="accepted"),
    Case("a size in words", rows(lambda r: r[0].update(bytes="many")), NO_LIST, before="traceback"),
    Case("a size below nothing", rows(lambda r: r[0].update(bytes=-1)), NO_LIST, before="accepted"),
    Case("a checksum that is none", rows(lambda r: r[0].update(xxh3_64="xyz")), NO_LIST, before="traceback"),
    Case("a checksum too long", rows(lambda r: r[0].update(xxh3_64="f" * 40)), NO_LIST, before="traceback"),
]  # fmt: skip


@pytest.mark.parametrize("case", STAGED, ids=lambda case: case.name)
def test_a_wrong_list_of_shards_is_refused(case: Case, refuse: Refuse) -> None:
    archives.folders(refuse.project / "pictures")
    assert run(SHARDS, refuse.capsys).status == 0
    wanted(MADE, read_manifest(MADE), Share(), lambda name: 0)
    case.make(refuse.project)
    fit_digests()
    manifest = read_manifest(MADE)
    with pytest.raises(UserError) as raised:
        wanted(MADE, manifest, Share(), lambda name: 0)
    refuse.note(case, str(raised.value))
    assert case.says in str(raised.value)


def test_an_index_is_a_zip_of_arrays_that_lie_in_it_as_they_are(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archives.folders(project / "pictures")
    assert run(PICTURES, capsys).status == 0
    with zipfile.ZipFile(INDEX) as found:
        assert {info.compress_type for info in found.infolist()} == {zipfile.ZIP_STORED}
