"""What the shipped studies hold, at every scale that they have."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from scalestudy.claims.basis import ELSEWHERE, INSTRUMENT_CHECK, basis_of
from scalestudy.claims.model import Published
from scalestudy.errors import raise_all
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.step_times import emulated_step_time
from scalestudy.spec.study import Study
from scalestudy.spec.yamlfile import read_yaml
from tests.conftest import ROOT

SCALES = ("mini", "node", "paper")


PAGE = (ROOT / "docs/reference/experiments.md").read_text()
CONCLUSIONS = PAGE.partition("## Conclusions")[2].partition("## What stands")[0]


@pytest.fixture(scope="module")
def shipped() -> list[Study]:
    """Every shipped study, at each scale that it has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        found = [find_studies(None, scale, Machine()) for scale in SCALES]
    raise_all([error for each in found for error in each.errors()])
    return [study for each in found for study in each.studies]


def test_every_configuration_is_measured_often_enough_for_an_interval(shipped: list[Study]) -> None:
    counts = [(study.name, study.scale, Counter(run.configuration for run in study.runs)) for study in shipped]
    assert [each for each in counts if min(each[2].values(), default=3) < 3] == []


def test_an_emulated_training_at_mini_lasts_long_enough_to_be_timed(
    shipped: list[Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five steps and 0.2 s are what a valid window has at least."""
    monkeypatch.chdir(ROOT)
    short = set()
    for study in [study for study in shipped if study.scale == "mini"]:
        for spec in [run.spec for run in study.runs if run.spec.accelerator not in (None, "infinite")]:
            scale, samples = spec.data.scale, getattr(spec.data, "samples", 0)
            steps = int(samples * scale) // spec.global_batch * spec.train.epochs - spec.measure.warmup_steps
            steps = min(steps, spec.measure.steps or steps)
            seconds = steps * emulated_step_time(spec.model.name, str(spec.accelerator), spec.rank_batch)
            if steps < 5 or seconds < 0.2:
                short.add(f"{study.name}: {spec.model.name}, {steps} steps, {seconds:.2f} s")
    assert short == set()


def test_every_study_can_be_read_on_one_page() -> None:
    texts = {file.name: file.read_text() for file in (ROOT / "config/studies").glob("*.yaml")}
    assert {name: text.count("\n") for name, text in texts.items() if text.count("\n") > 60 or "null" in text} == {}


def test_every_claim_can_be_judged_at_some_scale_or_says_what_is_missing(shipped: list[Study]) -> None:
    claims = {(study.name, claim.id): claim for study in shipped for claim in study.claims}
    judged = {(study.name, claim.id) for study in shipped for claim in study.claims if study.scale in claim.scales}
    assert [name for name, claim in claims.items() if name not in judged and not claim.not_testable] == []


def test_the_page_of_experiments_names_every_study_with_its_scales(shipped: list[Study]) -> None:
    stated: dict[str, set[str]] = {}
    for line in PAGE.splitlines():
        for name in re.findall(r"\]\(\.\./gallery/(\w+)\.md\)", line):
            stated.setdefault(name, set()).update(re.findall(r"\b(?:mini|node|paper)\b", line.split("|")[-2]))
    assert stated == {study.name: {other.scale for other in shipped if other.name == study.name} for study in shipped}


def test_the_page_of_experiments_names_every_claim() -> None:
    """Each claim of a document names a study that exists; the page names all claims and no others."""
    named = set(re.findall(r"`([a-z0-9_]+)`", CONCLUSIONS))
    documents = [read_yaml(file).data for file in (ROOT / "config/claims").glob("*.yaml")]
    of_documents = {claim["id"]: claim["study"] for document in documents for claim in document["claims"]}
    studies = {file.stem: read_yaml(file).data for file in (ROOT / "config/studies").glob("*.yaml")}
    ours = {claim["id"] for study in studies.values() for claim in study.get("claims", [])}
    assert set(of_documents) | ours <= named
    assert {name for name in named if name.count("_") > 1} <= set(of_documents) | ours
    assert set(of_documents.values()) <= set(studies)


def test_the_page_of_experiments_counts_its_conclusions_and_names_the_scales_of_their_claims(
    shipped: list[Study],
) -> None:
    claims = {claim.id: claim for study in shipped for claim in study.claims}
    judged = {
        name: {
            study.scale
            for study in shipped
            for claim in study.claims
            if claim.id == name and study.scale in claim.scales and not isinstance(claim, Published)
        }
        for name in claims
    }
    rows = [line.split("|")[1:4] for line in CONCLUSIONS.splitlines() if re.match(r"\| [^|]+\| (?!claim)", line)]
    checked = [(claim, basis) for _, claim, basis in rows if "`" in claim and not claim.startswith(" none")]
    for claim, basis in checked:
        named = [name for name in re.findall("`([a-z0-9_]+)`", claim) if name in claims]
        scales = set(SCALES) if basis.strip() in ("S", "I", "M") else set(re.findall("mini|node|paper", basis))
        assert scales == set().union(*(judged[name] for name in named)), claim
        assert any(isinstance(claims[name], Published) for name in named) == ("P" in basis), claim
        assert "M" not in basis or not all(getattr(claims[name], "stand_ins", ()) for name in named), claim
    best = Counter(next(letter for letter in "MSIP" if letter in basis) for _, basis in checked)
    ours = sum(claim.origin == "ours" for claim in claims.values())
    assert (
        f"The tables have {len(rows)} conclusions: {best['M']} that measured runs can judge at one scale or more, {best['S']} with "
        f"stand-ins, {best['I']} by an instrument check, {best['P']} by published numbers alone, and {len(rows) - len(checked)} "
        f"without a claim. There are {len(claims)} claims, {ours} of them ours; at `mini`, runs judge "
        f"{sum('mini' in scales for scales in judged.values())}."
    ) in CONCLUSIONS


NOT_DECIDED = ("inconclusive", "not testable here", "consistent", "inconsistent")


def test_pages_of_the_gallery_have_claims_and_figures_that_their_studies_have(shipped: list[Study]) -> None:
    wrong = []
    for study in [study for study in shipped if study.scale == "mini"]:
        page = (ROOT / "docs/gallery" / f"{study.name}.md").read_text()
        rows = re.findall(
            r"^\| ((?!verdict)[a-z][^|]*) \| ([^|]+) \| ([^|]+) \| [^|]+ \| [^|]+ \|$",
            page.partition("## Claims")[2],
            re.MULTILINE,
        )
        judgements = {statement.replace("\\", ""): (verdict, basis) for verdict, basis, statement in rows}
        claims = {claim.statement: claim for claim in study.claims}
        stated = judgements.keys() - claims.keys()
        # What a setting decides is never called reproduced, and nothing else passes.
        wrong += [
            (study.name, f"{verdict}, {basis}: {statement}")
            for statement, (verdict, basis) in judgements.items()
            if statement in claims
            and basis != ELSEWHERE
            and not (
                (is_check := basis_of(claims[statement], ()) == INSTRUMENT_CHECK) == (basis == INSTRUMENT_CHECK)
                and (verdict in NOT_DECIDED or is_check != ("reproduced" in verdict))
            )
        ]
        drawn = set(re.findall(r"images/\w+/(\w+)\.png", page)) - {figure.file_name for figure in study.figures}
        wrong += [(study.name, each) for each in sorted(stated | drawn)]
        head = [study.title, study.question, f"of {len(study.runs)} runs with", *filter(None, [study.cannot_show])]
        wrong += [(study.name, each) for each in head if each not in page.replace("\\", "")]
    assert wrong == []
