# A new cohort with a model that is there: index, prepare, infer, report. `parcellation run` writes the plan that this
# is the graph of, and starts it. One rule is one verb of the command line; what a verb says is the rule's output, since
# verbs take care of their own files: whole or not there, and left as they are when nothing changed. The date makes each
# answer another one: a small file of equal content is one that has not changed, to Snakemake. Files of the workflow
# have paths relative to its folder, which is the working folder: a path of the user's may have any character.
PLAN = config
VERBS = {name: f"exec {PLAN['command'][name]} {PLAN['options']}" for name in PLAN["command"]}
VERBS["infer"] += f" {PLAN['inference']}"
STRICT = "--strict" if PLAN["strict"] else ""


def said(name):
    return f"said/{name}.txt"


def log_of(name):
    return f"logs/{name}.log"


def settings_of(name):
    return f"settings/{name}.json"


def asks(job):
    """The resources of a job, by the study's section `cluster`; each retry gets as much memory again."""
    wanted = PLAN["jobs"][job]
    found = {
        "mem_mb": lambda wildcards, attempt: attempt * wanted["memory"],
        "runtime": wanted["minutes"],
        "slurm_extra": PLAN["slurm_extra"],
    }
    named = {"slurm_account": PLAN["account"], "slurm_partition": wanted["partition"], "gpu": wanted["gpus"]}
    return found | {name: value for name, value in named.items() if value}


def again(job):
    """How often a job that fails is sent again. In the job itself never: there each attempt would be tried again."""
    return PLAN["jobs"][job]["retries"] if workflow.is_main_process else 0


def deliverables(wildcards):
    """Every file of the results, once it is known who could be inferred."""
    with open(checkpoints.population.get().output.files) as lines:
        return [f"{PLAN['results']}/{line.rstrip()}" for line in lines]


wildcard_constraints:
    subject="[A-Za-z0-9]+",
    part="[0-9]+",


localrules:
    all,
    index,


rule all:
    input:
        deliverables,
        f"{PLAN['results']}/report.html",


rule index:
    input:
        settings_of("index"),
    output:
        said("index"),
    log:
        log_of("index"),
    shell:
        "date > {output:q}; {VERBS[index]} >> {output:q} 2> {log:q}"


rule prepare:
    input:
        ancient(said("index")),
        settings_of("prepare/sub-{subject}"),
    output:
        said("prepare/sub-{subject}"),
    log:
        log_of("prepare/sub-{subject}"),
    threads: PLAN["jobs"]["prepare"]["cpus"]
    retries: again("prepare")
    resources:
        **asks("prepare"),
    shell:
        "date > {output:q}; {VERBS[prepare]} --level participant --participant-label {wildcards.subject:q} >> {output:q} 2> {log:q}"


rule prepared:
    input:
        expand(said("prepare/sub-{subject}"), subject=PLAN["subjects"]),
    output:
        said("prepared"),
    log:
        log_of("prepared"),
    threads: PLAN["jobs"]["report"]["cpus"]
    retries: again("report")
    resources:
        **asks("report"),
    shell:
        "date > {output:q}; {VERBS[prepare]} --level group {STRICT} >> {output:q} 2> {log:q}"


rule infer:
    input:
        said("prepared"),
        settings_of("infer"),
        PLAN["trained"],
    output:
        said("infer/{part}"),
    params:
        subjects=lambda wildcards: PLAN["parts"][wildcards.part],
    log:
        log_of("infer/{part}"),
    threads: PLAN["jobs"]["infer"]["cpus"]
    retries: again("infer")
    resources:
        **asks("infer"),
    shell:
        "date > {output:q}; {VERBS[infer]} --level participant --participant-label {params.subjects:q} >> {output:q} 2> {log:q}"


checkpoint population:
    input:
        expand(said("infer/{part}"), part=PLAN["parts"]),
    output:
        said=said("population"),
        files=f"{PLAN['work']}/deliverables.txt",
    log:
        log_of("population"),
    threads: PLAN["jobs"]["report"]["cpus"]
    retries: again("report")
    resources:
        **asks("report"),
    shell:
        "date > {output.said:q}; {VERBS[infer]} --level group {STRICT} >> {output.said:q} 2> {log:q}"


rule report:
    input:
        said("population"),
        settings_of("report"),
    output:
        said=said("report"),
        page=update(f"{PLAN['results']}/report.html"),
    log:
        log_of("report"),
    threads: PLAN["jobs"]["report"]["cpus"]
    retries: again("report")
    resources:
        **asks("report"),
    shell:
        "date > {output.said:q}; {VERBS[report]} >> {output.said:q} 2> {log:q}"
