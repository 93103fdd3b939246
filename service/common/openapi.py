"""What every operation has in common in the OpenAPI document: who may ask, and how it is refused.

FastAPI documents what a handler gives. What stands around all handlers (tokens, bounds, validation, problems) is
stated here, once, from the shape of the operation, so that no route repeats it and none forgets it. A route that
refuses for a reason of its own declares it with ``responses=problems(409)``; one that needs no token with ``PUBLIC``.
"""

from __future__ import annotations

from typing import Any, Final

from mainstay.service.common.problem import BY_STATUS, MEDIA_TYPE, Problem

PUBLIC: Final[dict[str, Any]] = {"security": []}
"""``openapi_extra`` of an operation that needs no token."""
_SCHEMAS: Final = "#/components/schemas/{model}"
Responses = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Responses:
    """``responses`` of a route that answers these statuses with a problem document."""
    return {status: {"$ref": f"#/components/responses/{_name(status)}"} for status in statuses}


def complete(schema: dict[str, Any], *, cookie: str) -> dict[str, Any]:
    """Add to an OpenAPI ``schema`` (in place) what all operations share; ``cookie`` is the session's name."""
    components = schema.setdefault("components", {})
    components["securitySchemes"] = _schemes(cookie)
    _add_problem(components.setdefault("schemas", {}))
    for path in schema.get("paths", {}).values():
        for method, operation in path.items():
            operation.setdefault("security", [{scheme: []} for scheme in components["securitySchemes"]])
            operation["responses"].pop("422", None)  # FastAPI's own form of it
            for status in sorted(_refusals(method, operation)):
                operation["responses"].setdefault(str(status), *problems(status).values())
            operation["responses"]["default"] = {"$ref": "#/components/responses/Problem"}
    _add_responses(schema)
    return schema


def _schemes(cookie: str) -> dict[str, Any]:
    told = "The session of a browser; requests that change state must come from the dashboard itself"
    return {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token: `Authorization: Bearer TOKEN`"},
        "session": {"type": "apiKey", "in": "cookie", "name": cookie, "description": told},
    }


def _refusals(method: str, operation: dict[str, Any]) -> set[int]:
    """How an operation of this shape may refuse."""
    places = {(parameter["in"], parameter["name"]) for parameter in operation.get("parameters", ())}
    media = operation.get("requestBody", {}).get("content", {})
    found: set[int] = set()
    if operation["security"]:
        found |= {401, 403}
    if method != "put" and any(place == "path" for place, _ in places):  # a PUT makes what is not there
        found |= {404}
    if places or media:
        found |= {422}
    if media:
        found |= {400, 413}
    if "application/json" in media:
        found |= {415}
    if ("header", "idempotency-key") in places:
        found |= {409}
    return found


def _add_problem(schemas: dict[str, Any]) -> None:
    schemas["Problem"] = Problem.model_json_schema(ref_template=_SCHEMAS)
    schemas.update(schemas["Problem"].pop("$defs", {}))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)


def _add_responses(schema: dict[str, Any]) -> None:
    answers = (answer for path in schema["paths"].values() for operation in path.values()
               for answer in operation["responses"].items())  # fmt: skip
    named = {ref.rsplit("/", 1)[-1]: status for status, answer in answers if (ref := answer.get("$ref"))}
    content = {MEDIA_TYPE: {"schema": {"$ref": _SCHEMAS.format(model="Problem")}}}
    schema["components"]["responses"] = {
        name: {"description": _description(status), "content": content} for name, status in sorted(named.items())
    }


def _name(status: int) -> str:
    return BY_STATUS[status].title.title().replace(" ", "")


def _description(status: str) -> str:
    return f"{BY_STATUS[int(status)].title} (RFC 9457)" if status.isdigit() else "A problem (RFC 9457)"
