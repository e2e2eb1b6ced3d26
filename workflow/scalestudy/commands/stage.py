"""Copies on this node's own disk, made and removed by hand."""

from __future__ import annotations

import re
from pathlib import Path

from scalestudy.data import stage
from scalestudy.data.stage import cache
from scalestudy.errors import UserError
from scalestudy.spec.config import read_site


def stage_data(manifest: Path, origin: str | None, share: str | None, streams: int, mib_per_s: float | None) -> str:
    """Make the copies; a sentence about them."""
    options = stage.Options(origin=origin, streams=streams, mib_per_s=mib_per_s)
    copies = stage.staged(manifest, options, _share(share), read_site())
    copied = copies.copied_bytes / 2**20
    rate = f", {copied / copies.seconds:,.0f} MiB/s" if copied else ""
    text = f"{copies.files:,} files, {copies.bytes / 2**20:,.1f} MiB; {copied:,.1f} MiB copied in {copies.seconds:.2f} s{rate}"
    copies.release()
    return f"{text}\n{copies.manifest.parent}"


def unstage_data() -> str:
    """Remove the copies that no run uses; lines about what was removed and what stays."""
    root = cache.scratch_folder(read_site())
    removed, used, foreign = cache.clean(root)
    lines = [f"removed {name}" for name in removed] + [f"in use  {name}" for name in used]
    lines += [f"left    {root / name}: it does not hold copies made by scalestudy" for name in foreign]
    return "\n".join(lines) if lines else f"there are no copies in {root}"


def _share(text: str | None) -> stage.Share:
    if text is None:
        return stage.Share()
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise UserError(f"`{text}` is no share", "--share", "write K/N with K from 0 to N - 1, for example 0/4")
    return stage.Share(int(match[1]), int(match[2]))
