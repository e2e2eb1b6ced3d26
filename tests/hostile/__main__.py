"""Every wrong and hostile input goes through its door, and the page about them is written: docs/measured/bad_inputs.md.

    python -m tests.hostile

Exit status 1 where an input was not answered as promised.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/measured/bad_inputs.md"
LONGEST = 400
DOORS = {
    "test_a_wrong_study_is_refused": ("Study files", "`scalestudy check`"),
    "test_a_mistake_in_a_study_is_answered_in_full": ("Mistakes in study files", "`scalestudy check`"),
    "test_a_wrong_configuration_is_refused": ("`config/config.yaml`", "`scalestudy check`"),
    "test_a_wrong_word_after_config_is_refused": ("Words after `--config`", "`scalestudy doctor`"),
    "test_a_wrong_machine_is_refused": ("Machine files", "`scalestudy check`"),
    "test_a_wrong_site_is_refused": ("Site files", "`scalestudy prepare`"),
    "test_a_wrong_setting_is_refused": ("Settings", "`scalestudy try`"),
    "test_a_wrong_dataset_is_refused": ("Datasets as JSON", "`scalestudy prepare --spec`"),
    "test_a_wrong_table_of_findings_is_refused": ("Tables and lists of images", "`scalestudy prepare`"),
    "test_a_wrong_file_of_arrays_is_refused": ("Files of arrays", "`scalestudy prepare`"),
    "test_a_wrong_list_of_classes_is_refused": ("Lists of classes", "`scalestudy prepare`"),
    "test_a_wrong_table_of_published_numbers_is_refused": ("Tables of published numbers", "`scalestudy check`"),
    "test_a_wrong_folder_is_refused": ("Folders of images", "`scalestudy prepare`"),
    "test_a_wrong_picture_is_refused": ("Images", "`scalestudy prepare`"),
    "test_a_wrong_tar_is_refused": ("Tars", "`scalestudy prepare`"),
    "test_a_wrong_manifest_is_refused": ("Manifests", "`scalestudy try`"),
    "test_a_wrong_index_is_refused": ("Indexes of prepared data", "opening it"),
    "test_a_wrong_list_of_shards_is_refused": ("Lists of shards", "staging them"),
    "test_what_says_what_samples_are_is_held_against_its_digest_and_made_again": (
        "Changed labels, indexes, lists",
        "opening them",
    ),
    "test_damaged_notes_about_copies_are_made_anew": ("Notes about copies on a node", "staging"),
    "test_data_is_not_made_through_a_link": ("Planted links: data", "`scalestudy prepare`"),
    "test_a_run_is_not_made_through_a_link": ("Planted links: runs", "`scalestudy try`"),
    "test_a_wrong_spec_is_refused": ("Specs of runs", "`scalestudy train`"),
    "test_a_wrong_result_is_left_out_and_named": ("Results", "`scalestudy summary`"),
    "test_a_damaged_summary_is_made_again_from_the_results": ("Summaries of studies", "`scalestudy judge`"),
    "test_an_edited_table_without_results_is_refused": ("Summaries of studies", "`scalestudy judge`"),
    "test_verdicts_that_were_edited_are_judged_anew_from_the_results": ("Verdicts", "`scalestudy claims`"),
    "test_a_damaged_state_of_a_run_hides_no_other": ("States of runs", "`scalestudy summarise` and `summary`"),
    "test_damaged_lines_of_history_plans_and_ledger_are_read_past": (
        "Lines of history, plans and ledger",
        "reading them",
    ),
    "test_hours_of_the_ledger_that_are_no_number_are_an_error_because_the_budget_rests_on_them": (
        "Hours of the ledger",
        "a driver",
    ),
    "test_a_wrong_file_of_progress_is_refused": ("Progress", "`scalestudy status`"),
    "test_a_wrong_archive_is_refused": ("Archives of results", "`scalestudy import`"),
    "test_results_are_not_mixed_with_those_that_are_here": ("Names of campaigns", "`scalestudy import`"),
    "test_a_wrong_checkpoint_is_refused": ("Checkpoints", "`scalestudy try --from`"),
    "test_a_damaged_record_of_attempts_is_said_and_holds_up_no_run": ("Records of attempts", "a run that resumes"),
    "test_a_damaged_log_names_no_transport_that_it_does_not_hold": ("NCCL's logs", "judging a run"),
    "test_a_log_that_is_none_is_read_past": ("What lies in the place of a log", "judging a run"),
    "test_spoilt_output_says_nothing_that_is_wrong": ("What schedulers say of jobs", "a driver"),
    "test_a_spoilt_description_of_a_cluster_is_read_as_far_as_it_is_one": (
        "What schedulers say of clusters",
        "`scalestudy doctor`",
    ),
    "test_json_of_pbsnodes_in_another_shape_is_read_past": ("pbsnodes", "`scalestudy doctor`"),
    "test_a_job_list_that_multiplies_is_no_answer": ("XML that multiplies", "a driver"),
    "test_a_file_of_this_machine_is_not_read_into_a_job_list": ("XML with a file in it", "a driver"),
    "test_a_peer_that_is_not_of_the_run_cannot_end_it": ("Peers without the token", "the control channel of a run"),
    "test_a_note_of_another_user_says_nothing_that_is_not_true": ("Notes of other users", "the lock of a host"),
    "test_a_real_process_refuses_as_the_same_command_does_here": ("Real processes", "the installed command"),
    "test_snakemake_says_what_is_wrong_with_a_word_of_config_in_one_message": (
        "Real processes",
        "`snakemake --config`",
    ),
}
"""By the test that hands an input over: the door, and who reads there."""
HEAD = """\
# Invalid input and its messages

<!-- Written by `python -m tests.hostile`. -->

{attempts:,} invalid and hostile inputs, given by tests/hostile to every entry point of scalestudy. The promise for each: one message that says what is wrong and where (file, line and key where there are lines), in text that a terminal shows unchanged; an exit status other than 0; no traceback; no change on the disk outside of what the command makes. An invalid result, log or ledger line is not an error of a command: it is left out and named.

**The promise holds for {held:,} of {attempts:,}.** Each entry point also has a test with valid input, which is accepted.

Made with Python {python} on {system}.

| entry point | read by | inputs | answered as promised |
|---|---|---|---|
{rows}
"""


@dataclass
class Tried:
    """One input."""

    door: str
    reader: str
    name: str
    said: str
    before: str
    held: bool


@dataclass
class Collected:
    """A plugin of pytest that keeps what tests note."""

    tried: list[Tried] = field(default_factory=list)
    others_failed: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each part of each test."""
        noted = dict(report.user_properties)
        test = report.nodeid.partition("::")[2].partition("[")[0]
        if report.when == "call" and test in DOORS and "case" in noted:
            door, reader = DOORS[test]
            self.tried.append(
                Tried(door, reader, str(noted["case"]), str(noted["said"]), str(noted["before"]), report.passed)
            )
        elif report.failed:
            self.others_failed.append(report.nodeid)


def main() -> int:
    """Hand all inputs over, write the page, and return the exit status."""
    found = Collected()
    pytest.main(
        [
            "-q",
            "-n",
            "6",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            str(ROOT / "tests/hostile"),
            "--ignore",
            str(ROOT / "tests/hostile/test_fuzz.py"),
        ],
        [found],
    )
    PAGE.write_text(page(found.tried), encoding="utf-8")
    broke = [one for one in found.tried if not one.held]
    for one in broke:
        print(f"not answered as promised: {one.door}: {one.name}: {one.said[:200]!r}")
    for name in found.others_failed:
        print(f"failed: {name}")
    print(f"{len(found.tried):,} inputs, {len(broke)} not answered as promised; {PAGE.relative_to(ROOT)}")
    return 1 if broke or found.others_failed else 0


def page(tried: list[Tried]) -> str:
    """The page about these inputs."""
    order = [door for door, _ in DOORS.values()]
    by_door: dict[str, list[Tried]] = defaultdict(list)
    for one in sorted(tried, key=lambda one: (order.index(one.door), one.name)):  # tests end in any order
        by_door[one.door].append(one)
    rows = [
        f"| {door} | {', '.join(dict.fromkeys(one.reader for one in ones))} | {len(ones)} | {sum(one.held for one in ones)} |"
        for door, ones in by_door.items()
    ]
    head = HEAD.format(
        attempts=len(tried), held=sum(one.held for one in tried), python=platform.python_version(), system=f"{platform.system()} {platform.machine()}", rows="\n".join(rows),
    )  # fmt: skip
    return "\n".join([head, *(section(door, ones) for door, ones in by_door.items())])


def section(door: str, tried: list[Tried]) -> str:
    """One door: each input, and what was said."""
    lines = [f"## {door}\n", "| input | what is said |", "|---|---|"]
    lines += [f"| {cell(one.name)} | {quoted(one)} |" for one in tried]
    return "\n".join(lines) + "\n"


def quoted(one: Tried) -> str:
    """What was said, without the folders of this machine."""
    if not one.held:
        return "**not answered as promised**"
    text = re.sub(r"/\S*?/(?:project|outside)(?=/|\b)", "", one.said.removeprefix("scalestudy: ").strip()).strip()
    text = re.sub(r"/tmp/(\S*?/)?tmp\w{8}/|/tmp/\S+?/", "/tmp/…/", text)
    parts = [line.strip() for line in text.splitlines()]
    shown = " ⏎ ".join(parts)
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
    return f"`` {cell(shown)} ``" if shown else "nothing"


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
