"""The `cluster` section of a study: what jobs of a batch system ask for."""

from pathlib import Path

from pydantic import Field

from parcellation.section import Section


class Job(Section):
    """What a job of the workflow asks for. A retry gets as much memory again; `partition` in place of the section's."""

    memory: int = Field(default=3000, ge=1, description="MB")
    minutes: int = Field(default=120, ge=1)
    cpus: int = Field(default=1, ge=1)
    gpus: int = Field(default=0, ge=0)
    retries: int = Field(default=2, ge=0)
    partition: str | None = None


class PrepareJob(Job):
    """One subject's fingerprints."""

    memory: int = Field(default=2000, ge=1)
    minutes: int = Field(default=60, ge=1)


class TrainJob(Job):
    """The training, with as many processes as GPUs; each retry goes on from the last checkpoint."""

    memory: int = Field(default=4000, ge=1)
    minutes: int = Field(default=240, ge=1)
    retries: int = Field(default=5, ge=0)


class ReportJob(Job):
    """What is made of all subjects together: the population's maps, the report."""

    memory: int = Field(default=6000, ge=1)


class Cluster(Section):
    """How `run` spreads the work over jobs. No result depends on it."""

    snakemake: Path | None = None
    partition: str | None = None
    account: str | None = None
    subjects_per_job: int = Field(default=50, ge=1, description="of infer; prepare has a job a subject")
    prepare: PrepareJob = PrepareJob()
    train: TrainJob = TrainJob()
    infer: Job = Job()
    report: ReportJob = ReportJob()
