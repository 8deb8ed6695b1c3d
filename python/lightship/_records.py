"""Reports, plans and explanations: what the library serialises, as objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from lightship._progress import size


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [_wrapped(one) for one in value]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _lines(value: Any, indent: str) -> Iterator[str]:
    for name, one in value.items():
        if isinstance(one, dict) and one:
            yield f"{indent}{name}"
            yield from _lines(one, indent + "  ")
        elif isinstance(one, list) and any(isinstance(item, dict) for item in one):
            for number, item in enumerate(one):
                yield f"{indent}{name}[{number}]"
                yield from _lines(item, indent + "  ") if isinstance(item, dict) else [f"{indent}  {item}"]
        else:
            yield f"{indent}{name}: {_shown(one)}"


def _html(value: Any) -> str:
    if isinstance(value, dict):
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(str(name))}</th>"
            f"<td style='text-align:left'>{_html(one)}</td></tr>"
            for name, one in value.items()
        )
        return f"<table>{rows}</table>"
    if isinstance(value, list):
        if value and all(isinstance(one, dict) for one in value):
            names = list(dict.fromkeys(name for one in value for name in one))
            head = "".join(f"<th>{escape(name)}</th>" for name in names)
            body = "".join(
                "<tr>" + "".join(f"<td>{_html(one.get(name, ''))}</td>" for name in names) + "</tr>" for one in value
            )
            return f"<table><tr>{head}</tr>{body}</table>"
        return "<br>".join(_html(one) for one in value)
    return escape(_shown(value))


class Record(Mapping[str, Any]):
    """What the library says, with the names of its JSON as attributes and as keys."""

    def __init__(self, fields: dict[str, Any] | str, text: str | None = None) -> None:
        self._fields: dict[str, Any] = json.loads(fields) if isinstance(fields, str) else fields
        self._text = text

    def __getattr__(self, name: str) -> Any:
        # While it is unpickled, there are no fields yet.
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return _wrapped(fields[name])
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(fields)}")

    def __getitem__(self, name: str) -> Any:
        return _wrapped(self._fields[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields]

    def to_dict(self) -> dict[str, Any]:
        """A copy as dictionaries and lists."""
        return json.loads(json.dumps(self._fields))

    def __repr__(self) -> str:
        text = self._text or "\n".join(_lines(self._fields, "  "))
        return f"{type(self).__name__}\n{text.rstrip()}"

    def _repr_html_(self) -> str:
        if self._text:
            return f"<pre>{escape(self._text)}</pre>"
        return _html(self._fields)


class Report(Record):
    """What was planned for a transfer, and what happened."""

    def __repr__(self) -> str:
        rows, seconds = self._fields["rows"], self._fields["seconds"]
        text = f"Report: {rows:,} rows, {size(self._fields['bytes_arrow'])} in {seconds:.3f} s"
        if self._fields.get("bytes_wire"):
            text += f", {size(self._fields['bytes_wire'])} on the wire"
        if self._fields["bytes_written"]:
            text += f", {size(self._fields['bytes_written'])} written"
        return text


class Explanation(Record):
    """How a node executes a query."""


class Plan(Record):
    """What ``tune`` answers: a plan, the reasons for it, and what other plans would cost."""


class Profile(Record):
    """What ``calibrate`` has measured of a link."""
