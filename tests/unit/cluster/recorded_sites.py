"""What schedulers say about their clusters, in the forms of Slurm 22.05, OpenPBS 23.06 and Grid Engine 8.1.9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snakemake_executor_plugin_multinode.schedulers import CommandAnswer

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=16 CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.01"
    " AvailableFeatures=(null) ActiveFeatures=(null) Gres={gres} NodeAddr={name} NodeHostName={name} Version=22.05.8"
    " OS=Linux 5.14.0 #1 SMP PREEMPT_DYNAMIC RealMemory=256000 AllocMem=0 FreeMem=240000 Sockets=2 Boards=1"
    " State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}"
    " BootTime=2026-11-01T10:00:00 CfgTRES=cpu=64,mem=250G,billing=64"
)
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default={default} QoS=N/A"
    " DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO Hidden=NO MaxNodes={most} MaxTime={time} MinNodes=0"
    " Nodes=n[1-4] RootOnly={root} OverSubscribe=NO State=UP TotalCPUs=256 TotalNodes=4"
)
GPU, CPU = "gpu:a100:4(S:0-1)", "(null)"
SLURM = {
    "scontrol -o show node": "\n".join(
        [
            NODE.format(name="n1", gres=GPU, state="IDLE", partitions="gpu,all"),
            NODE.format(name="n2", gres=GPU, state="MIXED", partitions="gpu,all"),
            NODE.format(name="n3", gres=GPU, state="IDLE+DRAIN", partitions="gpu,all"),
            NODE.format(name="c1", gres=CPU, state="ALLOCATED", partitions="cpu,all"),
        ]
    ),
    "scontrol -o show partition": "\n".join(
        [
            PARTITION.format(name="cpu", default="NO", most="UNLIMITED", time="2-00:00:00", root="NO"),
            PARTITION.format(name="gpu", default="YES", most="2", time="1-12:00:00", root="NO"),
            PARTITION.format(name="admins", default="NO", most="UNLIMITED", time="UNLIMITED", root="YES"),
        ]
    ),
}
PBS_NODES = """\
{"timestamp":1700000000,"pbs_version":"23.06.06","pbs_server":"head","nodes":{
"a1":{"Mom":"a1","ntype":"PBS","state":"free","pcpus":40,"resources_available":{"arch":"linux","host":"a1","mem":"394264192kb","ncpus":40,"ngpus":4,"vnode":"a1"},"resources_assigned":{}},
"a2":{"Mom":"a2","ntype":"PBS","state":"offline","pcpus":40,"resources_available":{"arch":"linux","host":"a2","vnode":"a2"},"resources_assigned":{}},
"a2[0]":{"Mom":"a2","ntype":"PBS","state":"free","resources_available":{"host":"a2","mem":"188gb","ncpus":20,"ngpus":2,"vnode":"a2[0]"}},
"a2[1]":{"Mom":"a2","ntype":"PBS","state":"free","resources_available":{"host":"a2","mem":"188gb","ncpus":20,"ngpus":2,"vnode":"a2[1]"}}
}}
"""
PBS = {
    "pbsnodes -a -F json": PBS_NODES,
    "qstat -Qf": """\
Queue: workq
    queue_type = Execution
    total_jobs = 0
    state_count = Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun
\t:0
    resources_max.nodect = 8
    resources_max.walltime = 24:00:00
    enabled = True
    started = True

Queue: closed
    queue_type = Execution
    enabled = False
    started = True

Queue: router
    queue_type = Route
    route_destinations = workq
    enabled = True
    started = True
""",
    "qstat -Bf": """\
Server: head
    server_state = Active
    default_queue = workq
    job_history_enable = False
""",
}
SGE = {
    "qconf -sc": """\
#name               shortcut   type        relop requestable consumable default  urgency
#----------------------------------------------------------------------------------------
arch                a          RESTRING    ==    YES         NO         NONE     0
exclusive           excl       BOOL        EXCL  YES         YES        0        1000
gpu                 gpu        INT         <=    YES         YES        0        0
h_rt                h_rt       TIME        <=    YES         NO         0:0:0    0
""",
    "qhost -F gpu": """\
HOSTNAME                ARCH         NCPU NSOC NCOR NTHR NLOAD  MEMTOT  MEMUSE  SWAPTO  SWAPUS
----------------------------------------------------------------------------------------------
global                  -               -    -    -    -     -       -       -       -       -
h1                      lx-amd64       56    2   28   56  0.02  251.6G    1.2G     0.0     0.0
    Host Resource(s):      hc:gpu=4.000000
h2                      lx-amd64       56    2   28   56     -  251.6G       -     0.0       -
    Host Resource(s):      hc:gpu=4.000000
""",
    "qconf -sql": "all.q\n",
    "qconf -sq all.q": "qname                 all.q\nhostlist              @allhosts\npe_list               make mpi mpi4\nslots                 1,[h1=56]\nh_rt                  24:00:00\n",
}


class Recorded:
    """Answers by how a command begins; another command is not there."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers

    def __call__(self, argv: Sequence[str], limit_s: float) -> CommandAnswer:
        line = " ".join(argv)
        for begin in sorted(self.answers, key=len, reverse=True):
            if line.startswith(begin):
                return CommandAnswer(0, self.answers[begin], "")
        return CommandAnswer(1, "", f"{argv[0]}: not recorded")
