"""`scalestudy prepare`: one dataset, from its spec to its manifest."""

from __future__ import annotations

import json
from pathlib import Path

from scalestudy.data.manifest import Manifest
from scalestudy.data.prepare.datasets import prepare as prepare_data
from scalestudy.errors import UserError, raise_all
from scalestudy.files import read_json
from scalestudy.locks import beside_measured_runs
from scalestudy.spec.base import parse
from scalestudy.spec.config import read_site
from scalestudy.spec.run import RunSpec
from scalestudy.spec.yamlfile import dotted


def prepare(out: Path, text: str | None, bulk: Path | None) -> str:
    """Make the data that JSON, or `dataset.json` beside `out`, describes; returns what to say of it.

    Raises UserError where the description is wrong, or a named place does not hold the data.
    """
    file = out.parent / "dataset.json"
    where = "--spec" if text is not None else str(file)
    try:
        data = json.loads(text) if text is not None else read_json(file)
    except json.JSONDecodeError as error:
        raise UserError(f"not readable as JSON: {error}", where, 'write, for example, {"source": "digits"}') from None
    run, problems = parse(RunSpec, {"data": data})
    raise_all([UserError(each.what, f"{where}: {dotted(each.path)}", each.remedy) for each in problems])
    assert run is not None
    with beside_measured_runs():
        return _said(prepare_data(run.data, out, bulk, read_site()))


def _said(manifest: Manifest) -> str:
    if manifest.status == "skipped":
        return manifest.reason
    size = f"{manifest.train.bytes / 2**20:,.1f} MiB" if manifest.bulk else "made in memory"
    shards = f" in {manifest.train.shards:,} shards" if manifest.train.shards else ""
    left_out = f"; {manifest.left_out:,} that cannot be used are left out" if manifest.left_out else ""
    return f"{manifest.train.samples:,} training samples, {size}{shards}{left_out}"
