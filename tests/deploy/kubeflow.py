"""What Kubeflow Trainer takes of a TrainJob and its runtime, as JSON schemas.

The fields and their kinds are those of trainer.kubeflow.org/v1alpha1 (kubeflow/trainer,
manifests/base/crds, August 2026), as far as this project writes any; the Job that a runtime holds
is checked against Kubernetes' own schema instead.
"""

from __future__ import annotations

from typing import Any

TEXT, WHOLE, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
QUANTITY = {"pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?$", "type": ["integer", "string"]}


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    """An object of these fields and no others; the required ones may be among them."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def listed(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def named(kind: str, spec: Any) -> dict[str, Any]:
    """A whole resource."""
    return fields(
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
        kind={"const": kind},
        metadata=fields("name", name=TEXT, namespace=TEXT),
        spec=spec,
    )


_AMOUNTS = {"type": "object", "additionalProperties": QUANTITY}

TRAIN_JOB = named(
    "TrainJob",
    fields(
        "runtimeRef",
        runtimeRef=fields("name", apiGroup=TEXT, kind=TEXT, name=TEXT),
        suspend=FLAG,
        activeDeadlineSeconds=WHOLE,
        trainer=fields(
            image=TEXT,
            command=listed(TEXT),
            args=listed(TEXT),
            env=listed(fields("name", name=TEXT, value=TEXT)),
            numNodes={"type": "integer", "minimum": 0},
            numProcPerNode={"type": "integer", "minimum": 1},
            resourcesPerNode=fields(requests=_AMOUNTS, limits=_AMOUNTS),
        ),
    ),
)

TRAINING_RUNTIME = named(
    "TrainingRuntime",
    fields(
        mlPolicy=fields(numNodes=WHOLE, torch={"type": "object"}),
        template=fields(
            spec=fields(
                network=fields(
                    enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG, subdomain=TEXT
                ),
                replicatedJobs=listed(
                    fields(
                        "name", "template", name=TEXT, replicas=WHOLE, template={"type": "object"}
                    )
                ),
            )
        ),
    ),
)
