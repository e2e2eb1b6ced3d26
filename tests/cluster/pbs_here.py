"""A PBS that is already here: a site's, or a developer's own. Nothing is started, and nothing of it is changed.

As root the tests need an ordinary user: SCALESTUDY_TEST_USER names one. SCALESTUDY_PBS_RESTART may hold a command that
starts the server anew.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.box import Box, Unavailable


class PbsHere(Box):
    """The host itself, in the place of a box."""

    def __init__(self, repository: Path) -> None:
        from snakemake_executor_plugin_multinode.schedulers import has_pbs

        if shutil.which("qsub") is None or not has_pbs():
            raise Unavailable("no PBS server was found, so its tests were not run; recorded answers were replayed")
        if os.geteuid() == 0 and "SCALESTUDY_TEST_USER" not in os.environ:
            raise Unavailable("PBS does not watch jobs of root: name an ordinary user, SCALESTUDY_TEST_USER=NAME")
        self.user = pwd.getpwnam(os.environ["SCALESTUDY_TEST_USER"]) if os.geteuid() == 0 else pwd.getpwuid(os.getuid())
        self.folder = Path(tempfile.mkdtemp(prefix="scalestudy-pbs-", dir=self.user.pw_dir))
        self.home = self.folder / "home"
        self.home.mkdir()
        self.environment = {}
        for path in (self.folder, self.home):
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def command(
        self, argv: Sequence[str], user: str | None = None, folder: Path | None = None, **more: str
    ) -> list[str]:
        """The command line that runs `argv` as the ordinary user."""
        inner = ["env", *(f"{key}={value}" for key, value in more.items()), *argv]
        line = f"cd {shlex.quote(str(folder or self.home))} && exec {shlex.join(inner)}"
        words = ["runuser", "-u", self.user.pw_name, "--"] if os.geteuid() == 0 and user is not None else []
        return [*words, "bash", "-c", line]

    def stop(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
