"""Results and what lies beside them. A wrong result is no error of a command: it is left out, and named with its difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scalestudy.cluster.ledger.actual import plans_file, read_plans
from scalestudy.cluster.ledger.used import LEDGER, last_causes, read_ledger
from scalestudy.cluster.ledger.waits import read_waits
from scalestudy.cluster.plan.expected import read_history
from scalestudy.errors import UNSEEN
from scalestudy.results.stored import write_result
from scalestudy.spec.layout import claims_file, history_file, result_file, run_folder
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Run
from snakemake_executor_plugin_multinode.records import Records
from tests.hostile.harness import Case, Refuse, digest, folder, pipe, raw, run, text
from tests.unit.analysis.fake_results import result_of

Plain = dict[str, Any]


def first() -> Run:
    return read_studies(["s"], "mini", Machine())[0].runs[0]


def file() -> Path:
    return result_file("local", first().id)


def forged(change: Callable[[Plain], object]) -> Callable[[Path], object]:
    """The result, changed, with a digest that fits."""

    def make(_project: Path) -> None:
        content = result_of(first())
        change(content)
        write_result(file(), content)

    return make


def content(what: bytes) -> Callable[[Path], object]:
    def make(project: Path) -> None:
        raw(str(file()), what)(project)

    return make


def as_folder(project: Path) -> None:
    folder(str(file()))(project)


def as_pipe(project: Path) -> None:
    pipe(str(file()))(project)


def cut(project: Path) -> None:
    raw(str(SUMMARY), SUMMARY.read_bytes()[:-100])(project)


def metric(**values: Any) -> Callable[[Path], object]:
    return forged(lambda result: result["metrics"].update(values))


def edited(_project: Path) -> None:
    file().write_text(
        file().read_text().replace('"throughput_samples_per_s": 100.0', '"throughput_samples_per_s": 900.0')
    )


def unsealed_text(old: str, new: str) -> Callable[[Path], object]:
    """Text of the file, changed, without a digest."""

    def make(_project: Path) -> None:
        plain = json.loads(file().read_text())
        del plain["digest"]
        changed = json.dumps(plain).replace(old, new)
        assert new in changed
        file().write_text(changed)

    return make


def of_another_run(_project: Path) -> None:
    other = read_studies(["s"], "mini", Machine())[0].runs[1]
    write_result(file(), result_of(other))


CASES = [
    Case("nothing in it", content(b""), "not readable as JSON"),
    Case("garbage", content(b"\x80garbage"), "not readable as JSON"),
    Case("a list", content(b"[]"), "is not what belongs there"),
    Case("an empty map", content(b"{}"), "has no digest"),
    Case("nested without end", content(b"[" * 100_000), "not readable as JSON"),
    Case("nested 900 deep", content(b'{"a":' * 900 + b"1" + b"}" * 900), "not what was measured: ", before="traceback"),
    Case("an infinity", content(b'{"metrics": {"loss": Infinity}}'), "Infinity is not a value of JSON"),
    Case("a folder", as_folder, "is not a file", before="traceback"),
    Case("a pipe", as_pipe, "is not a file", before="hang"),
    Case("an edited throughput", edited, "was changed after it was written"),
    Case("the result of another run", of_another_run, "it is the result of"),
    Case("another machine's result", forged(lambda r: r.update(machine="abci")), "it was measured on machine `abci`"),
    Case("a machine that is a list", forged(lambda r: r.update(machine=["local"])), "it was measured on machine"),
    Case("an unknown status", forged(lambda r: r.update(status="great")), "its `status` is `great`"),
    Case("a throughput below nothing", metric(throughput_samples_per_s=-5), "its throughput_samples_per_s is `-5`"),
    Case("a throughput in words", metric(throughput_samples_per_s="fast"), "its throughput_samples_per_s is `fast`"),
    Case("a throughput that is true", metric(throughput_samples_per_s=True), "its throughput_samples_per_s is `true`"),
    Case("a share above 1", metric(accuracy=1.01), "its accuracy is `1.01`"),
    Case("metrics as a list", forged(lambda r: r.update(metrics=[1])), "its `metrics` is `[1]`"),
    Case("a reason as a map", forged(lambda r: r.update(reason={"a": 1})), "its `reason` is"),
    Case("a spec as a number", forged(lambda r: r.update(spec=7)), "its `spec` is `7`"),
    Case("another batch", forged(lambda r: r["spec"].update(batch={"per_rank": 64})), "it was measured with batch.per_rank 64"),
    Case("another key in the spec", forged(lambda r: r["spec"].update(rnks=2)), "its spec is not one"),
    Case("evaluations that are numbers", forged(lambda r: r.update(evaluations=[5])), "its `evaluations.0` is `5`",
         before="traceback"),
    Case("an interval in words", forged(lambda r: r.update(intervals={"training_time_s": "x"})),
         "its `intervals.training_time_s` is `x`", before="traceback"),
    Case("an interval of three", forged(lambda r: r.update(intervals={"training_time_s": [1, 2, 3]})),
         "its `intervals.training_time_s` is `[1, 2, 3]`", before="traceback"),
    Case("what was resolved as a list", forged(lambda r: r.update(resolved=[1])), "its `resolved` is `[1]`", before="traceback"),
    Case("hosts as a number", forged(lambda r: r.update(launch={"hosts": 2})), "its `launch.hosts` is `2`", before="traceback"),
    Case("a time that is none", forged(lambda r: r.update(ended="soon")), "its `ended` is `soon`", before="traceback"),
    Case("an edited throughput, and no digest", unsealed_text('"throughput_samples_per_s": 100.0',
         '"throughput_samples_per_s": 900.0'), "has no digest", before="accepted"),
    Case("an unknown end of the window", forged(lambda r: r.update(window_ended_by="luck")), "its `window_ended_by` is `luck`"),
    Case("what was not checked as text", forged(lambda r: r.update(unchecked="reads")), "its `unchecked` is `reads`"),
    Case("a terminal's command", unsealed_text('"reason": null', '"reason": "\\u001b[2J"'), "contains the character \\u001b",
         before="unclear"),
    Case("half of a character", unsealed_text('"reason": null', '"reason": "\\ud800"'), "contains the character \\ud800",
         before="traceback"),
]  # fmt: skip


@pytest.fixture
def measured(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """The project with one result."""
    (refuse.project / "config/config.yaml").write_text("machine: local\nscale: mini\nstudies: [s]\n")
    write_result(file(), result_of(first()))
    return refuse


def test_without_a_fault_the_result_is_accepted(measured: Refuse) -> None:
    seen = run(("summary",), measured.capsys)
    assert seen.status == 0 and "1 valid" in seen.out and "not what was measured" not in seen.out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_result_is_left_out_and_named(case: Case, measured: Refuse) -> None:
    case.make(measured.project)
    before = digest(measured.project.parent)
    seen = run(("summary",), measured.capsys)
    said = next((line.strip() for line in seen.out.splitlines() if "not what was measured" in line), seen.out)
    measured.note(case, said)
    assert seen.status == 0 and "1 invalid" in seen.out and " valid" not in seen.out
    assert case.says in said
    assert not UNSEEN.search(seen.out + seen.said)
    assert digest(measured.project.parent) == before
    assert run(("summarise", "--study", "s"), measured.capsys).status == 0


STATES = [
    b"",
    b"[]",
    b"7",
    b"{",
    b"[" * 100_000,
    b'{"state": 5, "cause": {}}',
    b'{"state": "failed", "cause": "\\u001b[2J"}',
]


@pytest.mark.parametrize("state", STATES, ids=ascii)
def test_a_damaged_state_of_a_run_hides_no_other(state: bytes, measured: Refuse) -> None:
    other = read_studies(["s"], "mini", Machine())[0].runs[1]
    raw(str(run_folder("local", other.id) / "state.json"), state)(measured.project)
    measured.note(
        Case(f"state.json: {state[:30]!r}", raw("", b""), "", before="traceback" if state == b"[]" else ""), "read past"
    )
    assert run(("summarise", "--study", "s"), measured.capsys).status == 0
    seen = run(("summary",), measured.capsys)
    assert seen.status == 0 and "1 valid" in seen.out
    assert not UNSEEN.search(seen.out)


LINES = [b"", b"[]", b"7", b'"x"', b"{", b"{}", b"[" * 100_000, b'{"run": {}}', b'{"status": "valid", "wall_s": "x", "spec": []}',
         b'{"status": "valid", "ended": 5, "started": [], "spec": {}}', b'{"status": "valid", "wall_s": 1e999, "spec": {}}',
         b'{"event": "submitted", "name": []}', b'{"event": "ended", "name": {}, "time_s": 1}', b'{"event": 5, "name": "a"}',
         b'{"event": "submitted", "name": "a", "time_s": 1}\n{"event": "ended", "name": "a", "time_s": 2, "used_s": "x"}',
         b"\x80\x81\xff", b"0" * 5000]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line[:40]))
def test_damaged_lines_of_history_plans_and_ledger_are_read_past(line: bytes, measured: Refuse) -> None:
    good = b'{"event": "submitted", "name": "good", "time_s": 5.0, "job": "train x-0123456789ab", "gpu_hours": 2}'
    for place in (history_file("local"), plans_file("local"), LEDGER):
        raw(str(place), line + b"\n" + good + b"\n")(measured.project)
    measured.note(Case(f"line: {line[:40]!r}", raw("", b""), "", before="traceback" if line in (b"[]", b"7", b'"x"') else ""),
                  "read past")  # fmt: skip
    assert list(read_history(history_file("local"))) == []
    assert read_plans("local") == {}
    assert [attempt.name for attempt in read_ledger()] == ["good"]
    assert last_causes() == {} and read_waits() == []
    assert Records(Path(".scalestudy").absolute()).gpu_hours() == 2


@pytest.mark.parametrize("hours", ['"x"', "-1", "1e999", "[]", "{}"])
def test_hours_of_the_ledger_that_are_no_number_are_an_error_because_the_budget_rests_on_them(
    hours: str, measured: Refuse
) -> None:
    raw(str(LEDGER), f'{{"event": "ended", "name": "a", "gpu_hours": {hours}}}\n'.encode())(measured.project)
    with pytest.raises(ValueError, match="the GPU hours of a are ") as raised:
        Records(Path(".scalestudy").absolute())
    measured.note(Case(f"GPU hours: {hours}", raw("", b""), "", before="traceback"), str(raised.value))


PROGRESS = ".scalestudy/progress.json"
TASK = {"output": "a", "rule": "train", "name": "a", "study": "s", "expected": {"low_s": 1, "high_s": 2, "source": "x"}}
SHOWN = f"{PROGRESS}: "
PROGRESSES = [
    Case("nothing in it", raw(PROGRESS, b""), SHOWN),
    Case("garbage", raw(PROGRESS, b"\x80"), SHOWN),
    Case("a list", text(PROGRESS, "[]"), SHOWN),
    Case("a pipe", pipe(PROGRESS), "nothing has been started in this folder"),
    Case("another version", text(PROGRESS, '{"format": 99}'), SHOWN),
    Case("jobs as a number", text(PROGRESS, json.dumps({"format": 1, "tasks": 5})), SHOWN),
    Case("a job as text", text(PROGRESS, json.dumps({"format": 1, "tasks": ["x"]})), SHOWN, before="traceback"),
    Case("a begin in words", text(PROGRESS, json.dumps({"format": 1, "tasks": [TASK], "began": "soon"})), SHOWN, before="traceback"),
    Case("an expectation in words", text(PROGRESS, json.dumps({"format": 1, "tasks": [{**TASK, "expected": {"low_s": "x"}}]})), SHOWN,
         before="traceback"),
]  # fmt: skip


@pytest.mark.parametrize("case", PROGRESSES, ids=lambda case: case.name)
def test_a_wrong_file_of_progress_is_refused(case: Case, refuse: Refuse) -> None:
    refuse(case, ("status",))


CLAIM = """claims:
- {id: c, statement: It is valid., source: nobody, place: nowhere, kind: exact, checks: [{column: status, equals: valid}]}
"""


SUMMARY = Path("results/local/mini/studies/s/runs.parquet")


def rewritten(change: Callable[[pd.DataFrame], pd.DataFrame], keeps_notes: bool = False) -> None:
    """The table, changed and written by pandas, perhaps with the digest of the one before."""
    table = pa.Table.from_pandas(change(pd.read_parquet(SUMMARY)))
    notes = pq.read_schema(SUMMARY).metadata if keeps_notes else table.schema.metadata
    pq.write_table(table.replace_schema_metadata(notes), SUMMARY)


SUMMARIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing in it": (raw(str(SUMMARY), b""), ""),
    "garbage": (raw(str(SUMMARY), b"PAR1garbagePAR1"), ""),
    "cut": (cut, ""),
    "another table": (lambda project: pd.DataFrame({"step": [1]}).to_parquet(SUMMARY), "traceback"),
    "a pipe": (pipe(str(SUMMARY)), "hang"),
    "an edited number": (
        lambda project: rewritten(lambda rows: rows.assign(throughput_samples_per_s=99999.0)),
        "accepted",
    ),
    "an edited number, and the old notes": (
        lambda project: rewritten(lambda rows: rows.assign(throughput_samples_per_s=99999.0), keeps_notes=True),
        "accepted",
    ),
    "columns by each other's names": (
        lambda project: rewritten(
            lambda rows: rows.rename(columns={"wall_s": "epoch_time_s", "epoch_time_s": "wall_s"}), keeps_notes=True
        ),
        "accepted",
    ),
}


@pytest.mark.parametrize("kind", SUMMARIES)
def test_a_damaged_summary_is_made_again_from_the_results(kind: str, measured: Refuse) -> None:
    study = measured.project / "config/studies/s.yaml"
    study.write_text(study.read_text() + CLAIM)
    assert run(("summarise", "--study", "s"), measured.capsys).status == 0
    before = pd.read_parquet(SUMMARY)
    spoil, broke = SUMMARIES[kind]
    spoil(measured.project)
    assert run(("judge", "--study", "s"), measured.capsys).status == 0
    assert pd.read_parquet(SUMMARY).equals(before)
    measured.note(Case(f"runs.parquet: {kind}", raw("", b""), "", before=broke), "made again from the results")


def test_an_edited_table_without_results_is_refused(measured: Refuse) -> None:
    study = measured.project / "config/studies/s.yaml"
    study.write_text(study.read_text() + CLAIM)
    assert run(("summarise", "--study", "s"), measured.capsys).status == 0
    file().unlink()

    def edit(_project: Path) -> None:
        rewritten(lambda rows: rows.assign(throughput_samples_per_s=99999.0), keeps_notes=True)

    case = Case("an edited table without results", edit, f"{SUMMARY}: cannot be read: it was changed after it was written",
                before="accepted")  # fmt: skip
    measured(case, ("judge", "--study", "s"))


def test_verdicts_that_were_edited_are_judged_anew_from_the_results(measured: Refuse) -> None:
    study = measured.project / "config/studies/s.yaml"
    study.write_text(study.read_text() + CLAIM)
    assert run(("summarise", "--study", "s"), measured.capsys).status == 0
    assert run(("judge", "--study", "s"), measured.capsys).status == 0
    place = claims_file("local", "mini", "s")
    found = json.loads(place.read_text())["claims"][0]["verdict"]
    assert found != "reproduced"  # one run of two is missing
    before = run(("claims",), measured.capsys).out
    for plain in (
        json.loads(place.read_text()),
        {k: v for k, v in json.loads(place.read_text()).items() if k != "digest"},
    ):
        place.write_text(json.dumps(plain).replace(f'"verdict": "{found}"', '"verdict": "reproduced"'))
        assert run(("claims",), measured.capsys).out == before
    measured.note(Case("an edited verdict", raw("", b""), "", before="accepted"), "judged anew")
