"""What the shipped studies hold, at every scale that they have."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from scalestudy.claims.model import AnyClaim, Published
from scalestudy.errors import raise_all
from scalestudy.spec.machine import Machine
from scalestudy.spec.read_study import find_studies
from scalestudy.spec.step_times import emulated_step_time
from scalestudy.spec.study import Study
from scalestudy.spec.yamlfile import read_yaml

ROOT = Path(__file__).resolve().parents[2]
SCALES = ("mini", "node", "paper")


@pytest.fixture(scope="module", params=SCALES)
def shipped(request: pytest.FixtureRequest) -> list[Study]:
    """Every shipped study that has this scale."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        found = find_studies(None, request.param, Machine())
        raise_all(found.errors())
    assert found.studies
    return found.studies


def test_every_configuration_is_measured_often_enough_for_an_interval(shipped: list[Study]) -> None:
    seldom = []
    for study in shipped:
        counts = Counter(run.configuration for run in study.runs)
        seldom += [f"{study.name}: {count}" for count in counts.values() if count < 3]
    assert seldom == []


def test_an_emulated_training_at_mini_lasts_long_enough_to_be_timed(
    shipped: list[Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five steps and 0.2 s are what a valid window has at least."""
    monkeypatch.chdir(ROOT)
    short = set()
    for study in [study for study in shipped if study.scale == "mini"]:
        for spec in [run.spec for run in study.runs if run.spec.accelerator not in (None, "infinite")]:
            scale, samples = spec.data.scale, getattr(spec.data, "samples", 0)
            assert isinstance(scale, float)
            steps = int(samples * scale) // spec.global_batch * spec.train.epochs - spec.measure.warmup_steps
            steps = min(steps, spec.measure.steps or steps)
            seconds = steps * emulated_step_time(spec.model.name, str(spec.accelerator), spec.rank_batch)
            if steps < 5 or seconds < 0.2:
                short.add(
                    f"{study.name}: {spec.model.name}, {samples * scale:g} samples, {steps} steps, {seconds:.2f} s"
                )
    assert short == set()


def test_every_study_can_be_read_on_one_page() -> None:
    texts = {file.name: file.read_text() for file in (ROOT / "config/studies").glob("*.yaml")}
    assert {name: text.count("\n") for name, text in texts.items() if text.count("\n") > 60 or "null" in text} == {}


def test_every_claim_can_be_judged_at_some_scale_or_says_what_is_missing() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        studies = [study for scale in SCALES for study in find_studies(None, scale, Machine()).studies]
    claims = {(study.name, claim.id): claim for study in studies for claim in study.claims}
    judged = {(study.name, claim.id) for study in studies for claim in study.claims if study.scale in claim.scales}
    assert [name for name, claim in claims.items() if name not in judged and not claim.not_testable] == []


def test_the_page_of_experiments_names_every_study_with_its_scales() -> None:
    """docs/reference/experiments.md is written by hand: a study without a row, or a scale that it lacks, fails."""
    stated: dict[str, set[str]] = {}
    for line in (ROOT / "docs/reference/experiments.md").read_text().splitlines():
        for name in re.findall(r"\]\(\.\./gallery/(\w+)\.md\)", line):
            stated.setdefault(name, set()).update(re.findall(r"\b(?:mini|node|paper)\b", line.split("|")[-2]))
    real: dict[str, set[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for scale in SCALES:
            for study in find_studies(None, scale, Machine()).studies:
                real.setdefault(study.name, set()).add(scale)
    assert stated == real


def test_the_page_of_experiments_names_every_claim() -> None:
    """Each claim of a document names a study that exists; the page names all claims and no others."""
    page = (ROOT / "docs/reference/experiments.md").read_text().partition("## Conclusions")[2]
    named = set(re.findall(r"`([a-z0-9_]+)`", page.partition("## What stands")[0]))
    documents = [read_yaml(file).data for file in (ROOT / "config/claims").glob("*.yaml")]
    of_documents = {claim["id"]: claim["study"] for document in documents for claim in document["claims"]}
    studies = {file.stem: read_yaml(file).data for file in (ROOT / "config/studies").glob("*.yaml")}
    ours = {claim["id"] for study in studies.values() for claim in study.get("claims", [])}
    assert set(of_documents) | ours <= named
    assert {name for name in named if name.count("_") > 1} <= set(of_documents) | ours
    assert set(of_documents.values()) <= set(studies)


def test_the_page_of_experiments_counts_its_conclusions_and_names_the_scales_of_their_claims() -> None:
    """A row that names other scales than those at which its claims can be judged fails, and so does a wrong count."""
    claims: dict[str, AnyClaim] = {}
    judged: dict[str, set[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for scale in SCALES:
            for claim in itertools.chain.from_iterable(
                study.claims for study in find_studies(None, scale, Machine()).studies
            ):
                claims[claim.id] = claim
                if not isinstance(claim, Published) and scale in claim.scales:
                    judged.setdefault(claim.id, set()).add(scale)
    page = (
        (ROOT / "docs/reference/experiments.md")
        .read_text()
        .partition("## Conclusions")[2]
        .partition("## What stands")[0]
    )
    rows = [line.split("|")[1:4] for line in page.splitlines() if re.match(r"\| [^|]+\| (?!claim)", line)]
    checked = [(claim, basis) for _, claim, basis in rows if "`" in claim and not claim.startswith(" none")]
    for claim, basis in checked:
        named = [name for name in re.findall("`([a-z0-9_]+)`", claim) if name in claims]
        scales = set(SCALES) if basis.strip() in ("S", "I", "M") else set(re.findall("mini|node|paper", basis))
        assert scales == set().union(*(judged.get(name, ()) for name in named)), claim
        assert any(isinstance(claims[name], Published) for name in named) == ("P" in basis), claim
    best = Counter(next(letter for letter in "MSIP" if letter in basis) for _, basis in checked)
    ours = sum(claim.origin == "ours" for claim in claims.values())
    assert (
        f"The tables have {len(rows)} conclusions: {best['M']} that measured runs can judge at one scale or more, {best['S']} with "
        f"stand-ins, {best['I']} by an instrument check, {best['P']} by published numbers alone, and {len(rows) - len(checked)} "
        f"without a claim. There are {len(claims)} claims, {ours} of them ours; at `mini`, runs judge "
        f"{sum('mini' in scales for scales in judged.values())}."
    ) in page
