"""The pages of settings, REST API, and metrics."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from prometheus_client import PLATFORM_COLLECTOR, PROCESS_COLLECTOR

from docs.generate.markdown import code, page, plain, prose, sentence, table
from mainstay.probes.signals import SignalSource
from mainstay.service import health
from mainstay.service.config.fields import example_file, setting_fields
from mainstay.service.exposition import collector, devices, remote_write
from mainstay.service.exposition import page as device_page
from mainstay.service.exposition.table import Exposed
from mainstay.service.fleet.directory import Fleet
from mainstay.service.incidents import metrics as incident_metrics
from mainstay.service.incidents import run_metrics
from mainstay.service.notifications import metrics as notification_metrics
from mainstay.service.remediation import metrics as remediation_metrics
from mainstay.service.telemetry.ring import NewestValues


def settings() -> str:
    """Return the page of settings."""
    groups: dict[str, list[tuple[object, ...]]] = {}
    about: dict[str, str] = {}
    for setting in setting_fields():
        group = ".".join(setting.path[:-1])
        about.setdefault(group, sentence(inspect.getdoc(setting.group)))
        kind = code(_type_name(setting.info.annotation))
        row = (
            code(setting.key),
            code(setting.variable),
            kind,
            plain(setting.default),
            sentence(setting.description),
        )
        groups.setdefault(group, []).append(row)
    head = ("key in the file", "environment variable", "type", "default", "description")
    parts = [
        f"## {f'Group {group}' if group else 'General'}\n\n{about[group]}\n\n{table(head, rows)}"
        for group, rows in groups.items()
    ]
    introduction = (
        "The service reads settings from a TOML file and from environment variables. An environment variable has "
        "priority over the file. `mainstay config check` reports unknown names and invalid values. "
        "`mainstay config show` prints the effective values."
    )
    return page("Settings", introduction, *parts, f"## Example file\n\n```toml\n{example_file()}```")


def _type_name(annotation: Any) -> str:
    return (
        annotation.__name__
        if isinstance(annotation, type)
        else str(annotation).replace("typing.", "").replace("pathlib.", "")
    )


def rest_api(schema_file: Path) -> str:
    """Return the page of the REST API from the OpenAPI document."""
    document = json.loads(schema_file.read_text(encoding="utf-8"))
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if isinstance(operation, dict) and "responses" in operation:
                tag = (operation.get("tags") or ["general"])[0]
                by_tag.setdefault(tag, []).append(_operation(method, path, operation))
    parts = [f"## {tag.replace('-', ' ').capitalize()}\n\n" + "\n\n".join(by_tag[tag]) for tag in sorted(by_tag)]
    schemas = document["components"]["schemas"]
    parts.append("## Schemas\n\n" + "\n\n".join(_schema(name, schemas[name]) for name in sorted(schemas)))
    about = (
        "Every operation of version 1. [REST API conventions](rest-api-conventions.md) describe authentication, "
        "paging, errors, and idempotency. The service provides the same document at `/openapi.json`."
    )
    return page("REST API", about, *parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"### {method.upper()} `{path}`", prose(operation.get("description") or operation.get("summary"))]
    rows = [
        (code(each["name"]), each["in"], "yes" if each.get("required") else "no", _type(each["schema"]))
        for each in operation.get("parameters", ())
        if "name" in each
    ]
    lines.append(table(("parameter", "in", "required", "type"), rows))
    body = operation.get("requestBody", {}).get("content", {})
    lines += [f"Request body: {_type(content.get('schema', {}))} ({code(kind)})." for kind, content in body.items()]
    for status, response in operation["responses"].items():
        content = response.get("content", {}).items()
        if status.startswith("2"):
            answers = [f"{_type(each.get('schema', {}))} ({code(kind)})" for kind, each in content]
            lines.append(f"Response {status}: {', '.join(answers) or 'no content'}.")
    return "\n\n".join(line for line in lines if line)


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (code(field), _type(about), "yes" if field in required else "no", sentence(about.get("description")))
        for field, about in schema.get("properties", {}).items()
    ]
    values = f"One of {', '.join(code(value) for value in schema['enum'])}." if "enum" in schema else ""
    fields = table(("field", "type", "required", "description"), rows)
    return "\n\n".join(part for part in (f"### {name}", prose(schema.get("description")), values, fields) if part)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[`{name}`](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if "enum" in schema or "const" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema.get("enum", [schema.get("const")]))
    return str(schema.get("format") or schema.get("type") or "any")


class MetricReference(NamedTuple):
    """One metric of ``/metrics``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    description: str


_MODULES: Final = (
    health, incident_metrics, run_metrics, collector, notification_metrics, remediation_metrics, devices, device_page,
    remote_write,
)  # fmt: skip
_MAKERS: Final = {
    "counter": "counter",
    "CounterMetricFamily": "counter",
    "gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "histogram": "histogram",
    "HistogramMetricFamily": "histogram",
    "InfoMetricFamily": "info",
    "family": "",
}


_ENDINGS: Final = {"counter": "_total", "info": "_info"}


def metric_references() -> list[MetricReference]:
    """Return every metric, by name."""
    found = {metric.name: metric for module in _MODULES for metric in _written_in(module)}
    found |= {metric.name: metric for metric in (*_of_devices(), *_of_process())}
    return [found[name] for name in sorted(found)]


def _written_in(module: ModuleType) -> Iterator[MetricReference]:
    """Yield the metrics whose families the module creates with a constant name."""
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(function, ast.FunctionDef):
            constants = {
                node.targets[0].id: node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            }
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    for metric in _written_by(node, constants):
                        yield metric if metric.labels else metric._replace(labels=_label_names(node, function))


def _label_names(call: ast.Call, function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the keys that the function passes to ``text.labels`` where ``call`` writes text."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "family"):
        return ()
    made = (node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    keys = (each.args[0].keys for each in made if each.func.attr == "labels" and isinstance(each.args[0], ast.Dict))
    return tuple(key.value for group in keys for key in group if isinstance(key, ast.Constant))


def _written_by(call: ast.Call, constants: dict[str, ast.expr]) -> Iterator[MetricReference]:
    maker = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = [_constant(each, constants) for each in call.args]
    if maker not in _MAKERS or not arguments:
        return
    labels = next((tuple(_constant(each.value, constants) or ()) for each in call.keywords if each.arg == "labels"), ())
    kind, name, about = _MAKERS[maker], arguments[0], arguments[-1] if maker != "family" else None
    if maker == "family" and isinstance(name, str):
        kind, about = str(arguments[1]), arguments[2]
    elif maker in {"counter", "gauge", "histogram"} and isinstance(name, str):
        name, about = f"mainstay_{name}", arguments[1]
    elif len(arguments) > 1:
        about = arguments[1]
    if isinstance(call.args[0], ast.JoinedStr) and maker.endswith("Family") and labels:
        for stem, text in collector._DURABILITY:  # noqa: SLF001 - the one table of names outside a call
            yield MetricReference(f"mainstay_job_durability_{stem}", kind, labels, text)
    elif isinstance(name, str) and name.startswith("mainstay_"):
        yield MetricReference(f"{name}{_ENDINGS.get(kind, '')}", kind, labels, str(about or ""))


def _constant(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _of_devices() -> Iterator[MetricReference]:
    """Yield the metrics of one GPU, one host, and one port whose signals all have a value."""
    latest, fleet = _AllOne(), Fleet({}, 0)
    parts = [
        *devices.gpus(latest, lambda columns: replace(devices.cards(columns, fleet), **_CARD)),
        *devices.signals(SignalSource.HOST, latest, devices.host_labels),
        *devices.signals(SignalSource.NIC, latest, devices.port_labels),
    ]
    for block in b"".join(parts).decode().split("# HELP ")[1:]:
        head, kind, sample = block.split("\n")[:3]
        name, _, about = head.partition(" ")
        labels = tuple(part.split("=")[0] for part in sample.partition("{")[2].partition("}")[0].split(",") if part)
        yield MetricReference(name, kind.rsplit(" ", 1)[-1], labels, about)


_CARD: Final = {"is_known": np.array([True]), "memory_bytes": np.array([1.0])}


def _of_process() -> Iterator[MetricReference]:
    """Yield the metrics that the client library adds."""
    for family in (*PROCESS_COLLECTOR.collect(), *PLATFORM_COLLECTOR.collect()):
        labels = tuple(family.samples[0].labels)
        yield MetricReference(
            f"{family.name}{_ENDINGS.get(family.type, '')}", family.type, labels, family.documentation
        )


class _AllOne(devices.Latest):
    """One device of each source, of which every value is known."""

    def __init__(self) -> None:
        pass

    def read(self, source: SignalSource, metric: Exposed) -> NewestValues[Any]:
        return NewestValues((("node", source.value),), np.ones(1, np.int64 if metric.signal.wide else np.float32))

    def active(self, source: SignalSource) -> NewestValues[np.bool_]:
        return NewestValues((("node", source.value),), np.array([True]))


def metrics() -> str:
    """Return the page of metrics."""
    sections = {
        "GPU": "mainstay_gpu_",
        "Hosts": "mainstay_host_",
        "Network ports": "mainstay_nic_",
        "Jobs": "mainstay_job_",
    }
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in ("Service and fleet", *sections)}
    for metric in metric_references():
        section = next(
            (name for name, prefix in sections.items() if metric.name.startswith(prefix)), "Service and fleet"
        )
        rows[section].append(
            (code(metric.name), metric.kind, ", ".join(map(code, metric.labels)), sentence(metric.description))
        )
    head = ("metric", "type", "labels", "description")
    about = (
        "`GET /metrics` returns these metrics in the text format of Prometheus, or in OpenMetrics 1.0.0 if the "
        "`Accept` header prefers `application/openmetrics-text`. A histogram `NAME` has the series `NAME_bucket`, "
        "`NAME_sum`, and `NAME_count`. "
        "[Prometheus and Grafana](../monitoring/README.md) describes the scrape configuration, alert rules, "
        "and dashboard."
    )
    return page("Metrics", about, *(f"## {name}\n\n{table(head, each)}" for name, each in rows.items()))
