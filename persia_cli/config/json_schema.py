"""JSON Schema of configuration files, with which editors complete keys, show their help and mark mistakes."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from persia_cli.config.schema import Run
from persia_cli.config.schema.base import refuse_flags

Json = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
INTERPOLATION: Json = {"type": "string", "pattern": r"\$\{"}
"""A value that is computed when the file is read, such as `${oc.env:HOME}`."""
DEFAULTS: Json = {
    "type": "array",
    "description": "The configurations and options that this file starts from, in order; `_self_` is this file.",
}


def file_schema() -> Json:
    """Return the schema of one configuration file, as plain JSON values.

    A file may omit any key, since it starts from other files, and may name a dataset file in place of its keys.
    """
    schema = Run.model_json_schema(schema_generator=_FileSchema)
    properties = {"defaults": DEFAULTS} | schema["properties"]
    properties["dataset"] = _or_text(properties["dataset"])
    without_required: Json = _optional(schema | {"properties": properties})
    return {"$schema": DIALECT, "title": "A persia configuration"} | without_required


class _FileSchema(GenerateJsonSchema):
    """Describes the values allowed in a file, which are more than the stored ones: sizes as text, short forms."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        described = super().function_before_schema(schema)
        return described if schema["function"]["function"] is refuse_flags else _or_text(described)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        if "anyOf" in described:  # only the choice that lists keys can refuse others
            described["anyOf"][0]["additionalProperties"] = described.pop("additionalProperties")
        return described

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        # The kind may be in another file, so that several of the choices can match.
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_interpolation(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_interpolation(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_interpolation(super().bool_schema(schema))


def _or_text(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "string"}]}


def _or_interpolation(schema: Json) -> Json:
    return {"anyOf": [schema, INTERPOLATION]}


def _optional(schema: Any) -> Any:
    """Return the schema without its lists of required keys; a property called `required` stays."""
    if isinstance(schema, list):
        return [_optional(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _optional(value)
        for key, value in schema.items()
        if not (key == "required" and isinstance(value, list) and "properties" in schema)
    }
