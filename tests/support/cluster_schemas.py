"""Schemas of Kubernetes and of JobSet, by which rendered manifests are checked; an extra key is a mistake too."""

import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

NEWEST = ("1.34", "1.35", "1.36", "1.37")
"""Minor versions of Kubernetes."""
CRD = "jobset-crd.yaml.gz"
"""JobSet's CustomResourceDefinition (kubernetes-sigs/jobset, config/components/crd/bases), which is not ours."""


def schemas_folder() -> Path | None:
    """The folder with the CRD, if this machine has it."""
    named = os.environ.get("PERSIA_TEST_SCHEMAS")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "schemas"
    return folder if (folder / CRD).is_file() else None


needs_crd = pytest.mark.skipif(
    schemas_folder() is None, reason=f"no schema of JobSet: set PERSIA_TEST_SCHEMAS to a folder with {CRD}"
)


def mistakes(manifest: dict[str, Any], version: str) -> list[str]:
    """Return what Kubernetes would refuse in a manifest; of a JobSet, what JobSet and Kubernetes would."""
    if manifest["kind"] != "JobSet":
        return _refused(manifest, version)
    found = [f"{'.'.join(map(str, error.path))}: {error.message}" for error in _jobset().iter_errors(manifest)]
    for job in manifest["spec"]["replicatedJobs"]:
        made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
        found += _refused(made, version)
    return found


def _refused(manifest: dict[str, Any], version: str) -> list[str]:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


@cache
def _jobset() -> jsonschema.protocols.Validator:
    folder = schemas_folder()
    assert folder is not None
    with gzip.open(folder / CRD, "rt", encoding="utf-8") as file:
        crd = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [each for each in crd["spec"]["versions"] if each["name"] == "v1alpha2"]
    schema = version["schema"]["openAPIV3Schema"]
    _make_strict(schema)
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def _make_strict(schema: Any) -> None:
    """Refuse keys that a schema does not name, and support the extension for a number or a text."""
    for below in schema if isinstance(schema, list) else schema.values() if isinstance(schema, dict) else ():
        _make_strict(below)
    if not isinstance(schema, dict):
        return
    open_ended = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not open_ended:
        schema["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string") is True:
        schema.pop("type", None)
        schema.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
