"""Claims in a study file: what a scale changes, what is fixed before the runs, and what is said against wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scalestudy.claims.check import claims_of_mistyped_studies
from scalestudy.claims.fixed import fix_claims, fixed_claims
from scalestudy.claims.words import side_text
from scalestudy.errors import UserError
from scalestudy.spec.layout import result_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import read_studies
from scalestudy.spec.study import Study
from tests.unit.claims.made_claims import as_fixed

STUDY = """question: How?
vary: {ranks: [1, 2], strategy: [allreduce, ring]}
repeats: 3
scales: {mini: {}}
claims:
  - id: faster
    statement: Two ranks are faster.
    kind: direction
    column: throughput_samples_per_s
    where: {strategy: allreduce}
    of: {ranks: 2}
    against: {ranks: 1}
    above: 1.1
    margin_reason: because
    at:
      mini: {above: null, below: 0.9, where: {strategy: ring}}
"""
DOCUMENT = """source: A
claims:
  - {id: all_end, study: s, statement: S., place: p, kind: exact, checks: [{column: status, equals: valid}]}
  - {id: other, study: another, statement: S., kind: exact, checks: [{column: status, equals: valid}]}
"""


def read(folder: Path, text: str = STUDY, scale: str = "paper", document: str = "") -> Study:
    for name in ("studies", "claims"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "studies/s.yaml").write_text(text)
    (folder / "claims/a.yaml").write_text(document or "source: A\n")
    return read_studies(["s"], scale, Machine(), folder=folder / "studies")[0]


def test_a_study_has_its_own_claims_and_those_of_documents_about_it(tmp_path: Path) -> None:
    own, stated = read(tmp_path, document=DOCUMENT).claims
    assert (own.id, own.origin, own.source) == ("faster", "ours", "")
    assert (stated.id, stated.origin, stated.source, stated.place) == ("all_end", "document", "A", "p")
    (_, ours) = read(tmp_path, document=DOCUMENT.replace("source: A", "source: own")).claims
    assert (ours.id, ours.origin, ours.source) == ("all_end", "ours", "")
    (_, quoted) = read(tmp_path, document=DOCUMENT.replace("study: s,", 'study: "s",')).claims
    assert quoted.id == "all_end"
    (tmp_path / "claims/.#a.yaml").symlink_to("me@host.1234")  # Emacs, while the file has changes that are not saved
    assert len(read(tmp_path, document=DOCUMENT).claims) == 2
    (tmp_path / "claims/b.yaml").write_bytes(b"source: \xe9\nclaims: [{study: s}]\n")
    with pytest.raises(UserError, match=r"b\.yaml: is not UTF-8 text"):
        read(tmp_path, document=DOCUMENT)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("checks: [{column: status", "checks: [{column: stats", "claims/a.yaml:3: claims[0].checks[0].column: no run"),
        ("id: all_end", "id: faster", "claims/a.yaml:3: claims[0].id: two claims have the id `faster`"),
        ("source: A\n", "", "claims/a.yaml:1: source: key is missing"),
        (" study: another,", "", "claims/a.yaml:4: claims[1].study: key is missing\n    name the study whose runs judge it"),
    ],
)  # fmt: skip
def test_a_wrong_claim_of_a_document_is_answered_with_its_line(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        read(tmp_path, document=DOCUMENT.replace(before, after))


def test_a_scale_replaces_keys_of_a_claim_and_removes_them_by_null(tmp_path: Path) -> None:
    (paper,) = read(tmp_path).claims
    (mini,) = read(tmp_path, scale="mini").claims
    assert paper.kind == mini.kind == "direction"
    assert (paper.above, paper.below, paper.where) == (1.1, None, {"strategy": "allreduce"})
    assert (mini.above, mini.below, mini.where) == (None, 0.9, {"strategy": "ring"})
    assert mini.statement == paper.statement


@pytest.mark.parametrize(
    ("before", "after", "scale", "said"),
    [
        ("column: thr", "repeats: 3\n    column: thr", "paper",
         "s.yaml:9: claims[0].repeats: unknown key\n    did you mean `looks`?"),
        ("column: thr", "colum: thr", "paper", "s.yaml:9: claims[0].colum: unknown key\n    did you mean `column`?"),
        ("column: throughput_samples_per_s", "column: throughput", "paper",
         "s.yaml:9: claims[0].column: `throughput` is not measured\n    did you mean "),
        ("above: 1.1", "above: 1.1\n    each: stages", "paper", "claims[0].each: `stages` is no key of these runs"),
        ("where: {strategy: allreduce}", "where: {strategy: horovod}", "paper",
         "s.yaml:10: claims[0].where.strategy: no run of this study has `strategy` `horovod`\n    there is `allreduce`, `ring`"),
        ("    where: {strategy: allreduce}\n", "", "paper",
         "s.yaml:10: claims[0].of: `of` chooses 2 configurations\n    they differ in `strategy` "
         "(`allreduce`, `ring`): choose one value, or add `take`"),
        ("    above: 1.1\n", "", "paper",
         "s.yaml:6: claims[0]: a claim of kind `direction` needs either `above` or `below`\n"
         "    give one of them; a range is kind `quantity`"),
        ("because", "because\n    scales: [paper]", "paper",
         "s.yaml:6: claims[0].not_testable: key `not_testable` is missing\n    say why scale mini, node cannot judge it"),
        ("because", "because\n    follows_from: loader.storage", "paper",
         "s.yaml:15: claims[0].follows_from: no run of this claim sets `loader.storage`"),
        ("where: {strategy: ring}", "of: {ranks: 8}", "mini",
         "s.yaml:16: claims[0].at.mini.of.ranks: no run of this study has `ranks` `8`\n    there is `1`, `2`"),
        ("above: null,", "statement: Faster., above: null,", "mini", "`statement` is the same at every scale"),
        ("against: {ranks: 1}", "against: {ranks: 1}\n    over: ranks", "paper",
         "`over` needs two or more, one at each `ranks`"),
        ("against: {ranks: 1}", "against: {ranks: 1}\n    compare: share\n    per: wall_s\n    take: most", "paper",
         "s.yaml:15: claims[0].take: a share has no `take`"),
        ("against: {ranks: 1}", "against: {ranks: 1}\n    compare: share", "paper", "`share` needs `per`"),
        ("above: 1.1", "above: 1.1\n    over: wall_s\n    compare: ratio", "paper", "a slope over an axis has no `compare`"),
        ("above: 1.1", "above: 1.1\n    looks: [5, 3]", "paper", "are not ascending numbers of rounds from 3 on"),
        # A claim that cannot fail.
        ("above: 1.1", "above: 0", "paper", "claims[0].above: any number that a ratio may have meets `above` `0.0`"),
        ("above: 1.1", "compare: difference\n    above: -1.0e+9", "paper", "above: any number that a difference"),
        ("    against: {ranks: 1}\n    above: 1.1", "    above: 0", "paper", "above: any number that a `throughput_samples"),
        ("against: {ranks: 1}", "against: {ranks: 2}", "paper", "against: `of` and `against` choose the same runs"),
    ],
)  # fmt: skip
def test_a_wrong_claim_is_answered_with_its_line_and_what_to_write(
    tmp_path: Path, before: str, after: str, scale: str, said: str
) -> None:
    assert before in STUDY
    with pytest.raises(UserError) as error:
        read(tmp_path, STUDY.replace(before, after), scale)
    assert said in str(error.value).replace(f"{tmp_path}/", "")


def test_a_published_claim_needs_a_file_and_one_row_for_each_side(here: Path) -> None:
    folder = here / "config/reference"
    folder.mkdir(parents=True)
    (folder / "times.csv").write_text("ranks,nodes,training_time_s\n1,1,10\n2,1,0\n4,1,4\n4,4,5\n")
    text = STUDY.partition("    kind:")[0] + (
        "    kind: published\n    reference: [times]\n    column: training_time_s\n    of: {ranks: 1}\n"
        "    against: {ranks: 4}\n    above: 2\n    margin_reason: because\n"
    )
    for wanted, said in (
        (text, "`against` chooses 2 published rows, and needs one"),
        (text.replace("{ranks: 4}", "{ranks: 8}"), "no published row has `ranks` `8`\n    there is `1`, `2`, `4`"),
        (text.replace("{ranks: 4}", "{ranks: 2}"), "claims[0].column: a published number that is divided by is 0"),
        (text.replace("[times]", "[time]"), "there is no config/reference/time.csv\n    did you mean `times`?"),
        (text.replace("above: 2\n", "value: 2\n"), "needs `above`, `below`, or `value` with `within`"),
        (text.replace("training_time_s", "wall_s"), "no row of these files has a number in `wall_s`"),
    ):
        with pytest.raises(UserError) as error:
            read(here, wanted)
        assert said in str(error.value)
    assert len(read(here, text.replace("{ranks: 4}", "{ranks: 4, nodes: 4}")).claims) == 1


def test_a_claim_is_fixed_when_the_first_of_its_runs_is_made(here: Path) -> None:
    study, changed = read(here), read(here, STUDY.replace("above: 1.1", "above: 1.2"))
    ring, of_claim = (
        next(run.id for run in study.runs if run.spec.strategy.name == name) for name in ("ring", "allreduce")
    )
    for each in (changed, study):
        fix_claims([each], "here")
        assert fixed_claims(study, "here") == as_fixed(each)
    _make_result(ring)
    fix_claims([changed], "here")
    assert fixed_claims(study, "here") == as_fixed(changed)
    _make_result(of_claim)
    fix_claims([study], "here")
    assert fixed_claims(study, "here") == as_fixed(changed)

    for later in (STUDY.replace("faster", "later"), f"{STUDY.rstrip()}\n    scales: [mini]\n    not_testable: no\n"):
        other = read(
            here, later.replace("    at:\n      mini: {above: null, below: 0.9, where: {strategy: ring}}\n", "")
        )
        fix_claims([other], "here")
        assert fixed_claims(other, "here") == {}


def _make_result(run: str) -> None:
    file = result_file("here", run)
    file.parent.mkdir(parents=True)
    file.write_text("{}")


def test_a_claim_of_a_document_about_a_mistyped_study_is_named(tmp_path: Path) -> None:
    read(tmp_path, document=DOCUMENT.replace("study: another,", "study: ss,"))
    (tmp_path / "studies/s.yaml").rename(tmp_path / "studies/sss.yaml")
    found = list(claims_of_mistyped_studies(tmp_path / "claims", tmp_path / "studies"))
    assert [sentence.partition("a.yaml:")[2] for sentence in found] == [
        "4: claims[1].study: there is no study `ss`\n    did you mean `sss`?"
    ]


def test_a_side_is_said_by_its_label_or_as_a_choice_of_values(tmp_path: Path) -> None:
    slowed = [{"kind": "slow_decode", "seconds": 0.1}]
    faults = f"[{{value: [], label: as it is}}, {{value: {slowed}, label: 0.1 s slower per batch}}]"
    study = read(tmp_path, f"question: How?\nvary: {{loader.workers: [1, 2], faults: {faults}}}\n")
    assert side_text(study, {"faults": slowed}) == "0.1 s slower per batch"
    assert side_text(study, {"loader.workers": [1, 2]}) == "loader workers per rank 1 or 2"


def test_a_value_that_one_side_lacks_is_not_compared_with_another(tmp_path: Path) -> None:
    text = STUDY.replace("repeats: 3", "exclude: [{ranks: 1, strategy: ring}]\nrepeats: 3")
    with pytest.raises(UserError, match="no run is left at `strategy` `ring`"):
        read(tmp_path, text.replace("where: {strategy: allreduce}", "each: strategy"))
