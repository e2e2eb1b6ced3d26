"""What all rules share."""

import os

if "site" in config:
    os.environ["SCALESTUDY_SITE"] = str(config["site"])


wildcard_constraints:
    machine="[a-z][a-z0-9_]*",
    scale="mini|node|paper",
    study="[a-z][a-z0-9_]*",
    figure="[a-z][a-z0-9_]*",
    table="[a-z][a-z0-9_]*",
    run="[A-Za-z0-9_.]+-[0-9a-f]{12}",
    dataset="[A-Za-z0-9_.]+-[0-9a-f]{12}",


def asked(question):
    """A question to the project about a job's wildcards; what is wrong is said as a sentence."""

    def answer(wildcards):
        try:
            return question(wildcards)
        except UserError as error:
            raise WorkflowError(str(error))

    return answer
