"""spec.json of a run, by `scalestudy train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scalestudy.commands.one_run import checked_run
from scalestudy.files import read_json
from scalestudy.spec.ids import run_id
from tests.hostile.harness import Case, Refuse, folder, link, nothing, pipe, raw, text

SPEC = {"data": {"source": "digits"}, "ranks": 2, "strategy": {"name": "allreduce"}}
RUN = run_id(checked_run(SPEC, ""))
S = f"results/local/runs/{RUN}/spec.json"
TRAIN = ("train", "--out", f"results/local/runs/{RUN}/result.json")


def plain(**changes: object) -> Callable[[Path], object]:
    return text(S, json.dumps({**SPEC, **changes}))


CASES = [
    Case("not there", nothing, f"{S}: no such file"),
    Case("nothing in it", raw(S, b""), f"{S}: not readable as JSON"),
    Case("garbage", raw(S, b"\x80\x81"), f"{S}: not readable as JSON"),
    Case("zeros", raw(S, bytes(4096)), f"{S}: not readable as JSON"),
    Case("cut", text(S, json.dumps(SPEC)[:-5]), f"{S}: not readable as JSON"),
    Case("a folder", folder(S), f"{S}: is not a file", before="unclear"),
    Case("a pipe", pipe(S), f"{S}: is not a file", before="hang"),
    Case("a link to a device", link(S, "/dev/zero"), f"{S}: is not a file", before="hang"),
    Case("a list", text(S, "[1]"), f"{S}: "),
    Case("null", text(S, "null"), f"{S}: "),
    Case("an empty map", text(S, "{}"), f"{S}: "),
    Case("nested without end", text(S, '{"a":' * 100_000), f"{S}: not readable as JSON"),
    Case("nested 900 deep", text(S, '{"a":' * 900 + "1" + "}" * 900), f"{S}: ", before="traceback"),
    Case("an infinity", text(S, '{"seed": -Infinity}'), "-Infinity is not a value of JSON"),
    Case("an unknown key", plain(rnks=2), f"{S}: rnks: unknown key `rnks`"),
    Case("ranks as text", plain(ranks="2"), f"{S}: ranks: must be a whole number"),
    Case("ranks below nothing", plain(ranks=-1), f"{S}: ranks: must be at least 1"),
    Case("a truth in place of a number", plain(ranks=True), f"{S}: ranks: must be a whole number"),
    Case("the spec of another run", plain(ranks=4), f"{S}: describes another run than its folder names"),
    Case("an edited batch", plain(batch={"per_rank": 64}), f"{S}: describes another run than its folder names"),
    Case("an impossible run", plain(strategy={"name": "single"}), f"{S}: ranks: "),
    Case("a size that is none", plain(data={"source": "digits", "scale": "1.2.3 MiB"}), f"{S}: data.scale: "),
    Case("a terminal's command", text(S, '{"data": {"source": "image_folder", "root": "\\u001b[2J"}}'),
         f"{S}: contains the character \\u001b", before="unclear"),
    Case("half of a character", text(S, '{"device": "\\ud800"}'), f"{S}: contains the character \\ud800", before="unclear"),
    Case("a key with a terminal's command", text(S, '{"\\u001b[2J": 1}'), f"{S}: contains the character \\u001b", before="unclear"),
]  # fmt: skip


def test_without_a_fault_the_spec_is_accepted(project: Path) -> None:
    plain()(project)
    assert run_id(checked_run(read_json(project / S), S)) == RUN


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_spec_is_refused(case: Case, refuse: Refuse) -> None:
    refuse(case, TRAIN, may_write=(f"results/local/runs/{RUN}/.lock",))
