"""Images used where they lie: only an index of them is written."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from scalestudy.data.catalogue import DatasetSpec
from scalestudy.data.index import joined, write_index
from scalestudy.data.manifest import INDEX, Manifest, PreparationCost, Split
from scalestudy.data.prepare import parts, shard
from scalestudy.data.prepare.convert import converted
from scalestudy.data.prepare.describe import describe_pictures
from scalestudy.data.prepare.parts import Gathered, PartJob, PreparedPart
from scalestudy.data.prepare.select import Selection, evenly_spread, mean_bytes, plan_of, selected
from scalestudy.data.progress import shown
from scalestudy.data.scale import wanted_samples
from scalestudy.data.sources import EncodedImages
from scalestudy.files import sha256_text


def usable_in_place(spec: DatasetSpec, source: EncodedImages) -> bool:
    """Whether the images can be used where they lie: none has to be changed, and none is needed twice."""
    if source.root is None or spec.preprocess != "none" or spec.shard.format != "files":
        return False
    available = len(source.indexes["train"])
    return wanted_samples(spec.scale, available, mean_bytes(spec, source)) <= available


def index_in_place(manifest: Manifest, spec: DatasetSpec, source: EncodedImages, folder: Path, work: Path) -> Manifest:
    """Write the index into `folder`; with `on_error: skip`, decode every image first. Records lie in `work`."""
    assert source.root is not None
    indexes, left_out, bytes_in = {}, [], 0
    selection = selected(spec, source)
    for split, chosen in selection.items():
        indexes[split] = source.indexes[split].taken(chosen.order)
        if spec.on_error == "skip":
            found = _examined(spec, source, split, chosen, work)
            kept = joined([part.index for part in found])
            left_out += [name for part in found for name in part.left_out]
            bytes_in += sum(part.bytes_in for part in found)
            # In these indexes, `start` is the planned number of each image.
            readable = indexes[split].taken(kept.start)
            indexes[split] = dataclasses.replace(readable, width=kept.width, height=kept.height)
    write_index(folder / INDEX, indexes)
    manifest = dataclasses.replace(
        manifest,
        format="shards" if source.containers else "files",
        bulk=str(source.root),
        containers={str(split): names for split, names in source.containers.items()},
        cost=PreparationCost(bytes_in=bytes_in),
    )
    manifest = describe_pictures(manifest, spec, source, selection, indexes, left_out)
    content = sha256_text(f"{manifest.fingerprint} {_sampled(source)}")
    return dataclasses.replace(manifest, fingerprint=content)


def _sampled(source: EncodedImages) -> str:
    """SHA-256 over the bytes of some images: of images used where they lie, the index has names and sizes alone."""
    digest = hashlib.sha256()
    for split in sorted(source.indexes):
        for number in evenly_spread(len(source.indexes[split])):
            with contextlib.suppress(OSError):
                digest.update(source.read(split, number))
    return digest.hexdigest()


def _examined(
    spec: DatasetSpec, source: EncodedImages, split: Split, selection: Selection, work: Path
) -> list[PreparedPart]:
    """Parts whose index holds the images that can be decoded; `start` is their planned number."""

    def examine(job: PartJob) -> PreparedPart:
        gathered = Gathered(lambda n: converted(spec, source, split, int(selection.order[n])), skip=True)
        for _ in gathered.samples(job.begin, job.end):
            pass
        kept = np.array(gathered.kept, np.int64)
        return gathered.part(np.arange(len(selection.order)), [], [], start=kept)

    records = parts.records_folder(work, plan_of(spec, source, {split: selection}), split)
    with shown(f"examining {split}", len(selection.order)) as progress:
        jobs = list(shard.file_jobs(split, len(selection.order)))
        return parts.done(records, jobs, examine, progress)
