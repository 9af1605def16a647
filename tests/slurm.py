"""A Slurm of one node on this machine, for as long as a test needs it: munged, slurmctld and slurmd, as root."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SYSTEM = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm/gres.conf"))
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
GPUS = ("/dev/null", "/dev/zero")  # not real: files that Slurm hands out
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
MinJobAge=300
KillWait=20
SchedulerParameters=sched_interval=1,batch_sched_delay=0
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=20000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """What is needed and not there."""
    path = os.environ["PATH"] + ":/usr/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None] + (["root"] if os.geteuid() else [])
    # A killed test leaves links behind; anything else is somebody's cluster.
    return lacking + [f"no {path}" for path in SYSTEM if path.exists() and not path.is_symlink()]


@contextlib.contextmanager
def one_node(folder: Path) -> Iterator[None]:
    """Start all daemons with their files in a folder; skips where something is missing."""
    if lacking := missing():
        # Debian's packages and root are needed, which CI has and a user's machine need not.
        pytest.skip(f"a Slurm of one node needs {', '.join(lacking)}")
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o700)
    folder.chmod(0o755)
    (folder / "munge").chmod(0o711)
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=folder, gpus=len(GPUS)))
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={file}\n" for file in GPUS))
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o600)
    names = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    files = [f"--{option}={folder / 'munge' / name}" for option, name in names.items()]
    before, daemons = os.environ["PATH"], []
    os.environ["PATH"] += ":/usr/sbin"
    # Not by SLURM_CONF: Snakemake's jobs hide it from the steps in them.
    for path in SYSTEM:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(folder / path.name)
    try:
        for command in (["munged", "--foreground", "--force", *files], ["slurmctld", "-D"], ["slurmd", "-D"]):
            with open(folder / f"{command[0]}.out", "w") as out:
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out))
            time.sleep(0.5)
        wait_for(lambda: "idle" in said("sinfo", "--noheader", "--format=%T"), 60)
        yield
    finally:
        subprocess.run(["scancel", "--user=root"], capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)
        for path in SYSTEM:
            path.unlink()
        os.environ["PATH"] = before


def said(*command: str) -> str:
    """What a command prints; nothing when it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout


def wait_for(found, timeout: float, often: float = 0.2) -> None:
    """Wait until a condition holds; all times in seconds."""
    end = time.monotonic() + timeout
    while not found():
        assert time.monotonic() < end, "waited too long"
        time.sleep(often)
