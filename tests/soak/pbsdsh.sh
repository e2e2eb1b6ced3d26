#!/bin/bash
# A run over two hosts of a real OpenPBS, by pbsdsh; then one whose rank dies on the other host.
#
# OpenPBS has no Debian package: PBS_EXEC (default /opt/pbs) is an installation of one's own. As root; each host is a
# network namespace with a host name, all in a mount namespace, so that nothing outside changes. Usage:
#   tests/soak/pbsdsh.sh            prints what the job says and PASSED, or exits 1
set -u
pbs=${PBS_EXEC:-/opt/pbs}
[ -x "$pbs/sbin/pbs_server" ] || { echo "LEFT OUT: there is no OpenPBS in $pbs (set PBS_EXEC)"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "LEFT OUT: namespaces with their own hosts need root"; exit 0; }
project=$(cd "$(dirname "$0")/../.." && pwd)

if [ "${1:-}" != inside ]; then
  export BOX=$(mktemp -d)
  chmod 755 "$BOX"
  unshare --mount --net --uts --pid --fork --kill-child bash "$0" inside > "$BOX/log" 2>&1 || true
  cat "$BOX/out" 2> /dev/null || cat "$BOX/log"
  passed=1
  grep -q '"launcher": "pbsdsh"' "$BOX/good/result.json" && grep -q '"tail"' "$BOX/good/result.json" &&
    grep -q 'tail: rank 3 was killed by signal 9' "$BOX/out" && [ ! -e "$BOX/bad/result.json" ] && passed=0
  rm -rf "$BOX"
  [ $passed = 0 ] && echo PASSED || echo FAILED
  exit $passed
fi

mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p -m 777 /run/postgresql
mkdir -p "$BOX"/{etc,work,home,tail}
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$BOX/etc,workdir=$BOX/work" /etc
[ -d /opt/pbs_home ] || mkdir -p /opt/pbs_home # PBS refuses a home below a folder that all may write to
mount --bind "$BOX/home" /opt/pbs_home
hostname head
ip link set lo up
ip netns add tail
ip link add head0 type veth peer name tail0 netns tail
ip addr add 10.78.0.1/24 dev head0
ip link set head0 up
ip -n tail addr add 10.78.0.2/24 dev tail0
ip -n tail link set tail0 up
ip -n tail link set lo up
printf '127.0.0.1 localhost\n10.78.0.1 head\n10.78.0.2 tail\n' > /etc/hosts

export PATH=$pbs/bin:$pbs/sbin:$PATH
"$pbs/libexec/pbs_postinstall" server 23.06.06 "$pbs" /opt/pbs_home '' sameconf
printf '%s\n' PBS_SERVER=head PBS_START_SERVER=1 PBS_START_SCHED=1 PBS_START_COMM=1 PBS_START_MOM=0 "PBS_EXEC=$pbs" \
  PBS_HOME=/opt/pbs_home > /etc/pbs.conf
"$pbs/libexec/pbs_init.d" start
pbs_mom
for part in mom_priv mom_logs aux spool undelivered checkpoint pbs_version pbs_environment; do
  cp -a "/opt/pbs_home/$part" "$BOX/tail/"
done
rm -f "$BOX/tail/mom_priv/mom.lock"
chmod 755 "$BOX/tail"
nsenter --net=/run/netns/tail unshare --uts --mount \
  sh -c "hostname tail; mount --bind '$BOX/tail' /opt/pbs_home; exec pbs_mom"
qmgr -c "set server acl_roots=root@*"
qmgr -c "set server job_history_enable=True"
for host in head tail; do
  qmgr -c "create node $host"
  qmgr -c "set node $host resources_available.ncpus=4"
done
for second in {1..120}; do
  [ "$(pbsnodes -a | grep -c 'state = free')" = 2 ] && break
  sleep 1
done

cat > "$BOX/job.sh" <<JOB
export PATH='$PATH' PYTHONPATH='${PYTHONPATH:-}'
cd '$project'
sort \$PBS_NODEFILE | uniq -c
scalestudy try ranks=4 nodes=2 strategy=allreduce train.epochs=3 --out $BOX/good
scalestudy try ranks=4 nodes=2 strategy=allreduce train.epochs=300 \
  'faults=[{kind: killed_rank, rank: 3, at_step: 50}]' --out $BOX/bad
echo "exit status \$?"
JOB
job=$(qsub -l select=2:ncpus=2:mpiprocs=2 -l place=scatter -j oe -o "$BOX/out" "$BOX/job.sh")
for second in {1..600}; do
  qstat -x -f "$job" | grep -q 'job_state = F' && break
  sleep 1
done
"$pbs/libexec/pbs_init.d" stop # its database leaves shared memory otherwise
