"""A network that is lost shows in what is sent again and again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from scalestudy.emulation.network import emulated_nodes
from scalestudy.errors import Skipped
from scalestudy.launch.unanswered import LOOK_S, Unanswered, retransmitting, unanswered
from tests.integration.processes import wait_until

# A listener, an idle connection, one that sends for the first time, one that has sent again 6 times, one with a probe that
# was answered and one with 3 that were not, and one that is closed.
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0
   1: 01004D0A:9C40 02004D0A:8888 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0 20 4 30 10 -1
   2: 01004D0A:9C41 02004D0A:8888 01 00000400:00000000 01:00000014 00000000     0        0 102 1 0 20 4 30 10 -1
   3: 01004D0A:9C42 02004D0A:8888 01 00000400:00000000 01:00000514 00000006     0        0 103 1 0 20 4 30 10 -1
   4: 01004D0A:9C43 02004D0A:8888 01 00000400:00000000 04:00000514 00000006     0        0 104 1 0 20 4 30 10 -1
   5: 01004D0A:9C45 04004D0A:8888 01 00000400:00000000 04:00000514 00000000     0        3 105 1 0 20 4 30 10 -1
   6: 01004D0A:9C44 03004D0A:8888 06 00000000:00000000 03:00000514 00000000     0        0 0 3 0
"""
TABLE_6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF000001004D0A:9C40 0000000000000000FFFF000002004D0A:8888 01 00000400:00000000 01:00000014 00000003     0        0 200 1
"""
SENDS = """\
import socket, sys, time
sender = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
while True:
    sender.send(b"x")
    time.sleep(0.05)
"""


def test_only_what_was_sent_again_and_is_not_acknowledged_counts() -> None:
    assert list(retransmitting(TABLE)) == [("103", "10.77.0.2"), ("105", "10.77.0.4")]
    assert list(retransmitting(TABLE_6)) == [("200", "10.77.0.2")]


def test_a_peer_that_reads_nothing_is_not_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                sender.send(bytes(65536))
        time.sleep(0.7)
        assert unanswered(os.getpid()) == set()


def test_silence_adds_up_while_it_lasts_and_a_pause_of_all_counts_little(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"10.77.0.2"}
    monkeypatch.setattr("scalestudy.launch.unanswered.unanswered", lambda process: silent)
    watched = Unanswered()
    for _ in range(3):
        watched.look([7], LOOK_S)
    assert watched.longest(7) == ("10.77.0.2", 2 * LOOK_S)
    watched.look([7], 3600.0)
    assert watched.longest(7) == ("10.77.0.2", 4 * LOOK_S)
    silent = set()
    watched.look([7], LOOK_S)
    assert watched.longest(7) == ("", 0.0)


@pytest.mark.parametrize("at_sender", [False, True])
def test_a_link_that_is_taken_down_shows_at_the_sender(at_sender: bool) -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and `ip`, to take down a link in a network namespace")
    try:
        with emulated_nodes(2, 100.0) as (here, there):
            receives = "import socket, time; s = socket.create_server(('', 4000)); c, _ = s.accept(); time.sleep(60)"
            receiver = subprocess.Popen(["nsenter", "-t", str(there.keeper), "-n", sys.executable, "-c", receives])
            time.sleep(0.5)
            command = ["nsenter", "-t", str(here.keeper), "-n", sys.executable, "-c", SENDS, there.address, "4000"]
            sender = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                assert sender.stdout is not None and sender.stdout.readline() == b"connected\n"
                assert unanswered(sender.pid) == set()
                end = here if at_sender else there
                down = ["nsenter", "-t", str(end.keeper), "-n", "ip", "link", "set", "net0", "down"]
                subprocess.run(down, check=True)
                assert wait_until(lambda: unanswered(sender.pid) == {there.address}, 10)
            finally:
                for process in (sender, receiver):
                    process.kill()
                    process.wait()
    except Skipped as why:
        pytest.skip(str(why))
