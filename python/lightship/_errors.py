"""The exceptions of DB-API 2.0, with what the library knows about a failure."""

from __future__ import annotations

import json


class Warning(Exception):
    """Never raised; DB-API requires it."""


class Error(Exception):
    """A failure."""

    #: internal, usage, source, network, data, limits, broken-pipe or cancelled
    kind: str = "usage"
    #: What can be done about it.
    hint: str | None = None
    #: SQLSTATE: the database's, or the class that fits the kind.
    sqlstate: str | None = None
    #: The code that the database gave: SQLSTATE of PostgreSQL, the error number of MySQL.
    code: str | None = None
    #: The source that failed, if there are several.
    place: str | None = None
    #: Where in the statement: ``{"line": 1, "column": 8}``.
    position: dict[str, int] | None = None
    #: Rows that had arrived before.
    rows: int | None = None
    #: Memory that would have sufficed, in bytes.
    needed_bytes: int | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.place and not text.startswith(self.place):
            text = f"{self.place}: {text}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


class InterfaceError(Error):
    """The package was used wrongly, as after a fork."""


class DatabaseError(Error):
    """A source has failed."""


class DataError(DatabaseError):
    """A value can't be represented, or data is malformed."""


class OperationalError(DatabaseError):
    """A server could not be reached or was lost, a limit was reached, or the query was cancelled."""


class IntegrityError(DatabaseError):
    """Rows violate a constraint of the table that they are written to."""


class InternalError(DatabaseError):
    """A bug in Lightship."""


class ProgrammingError(DatabaseError):
    """The request or the statement is wrong."""


class NotSupportedError(DatabaseError):
    """Lightship can't do this."""


_BY_KIND = {
    "internal": InternalError,
    "usage": ProgrammingError,
    "source": DatabaseError,
    "network": OperationalError,
    "data": DataError,
    "limits": OperationalError,
    "broken-pipe": OperationalError,
    "cancelled": OperationalError,
}
_BY_SQLSTATE = {
    # Parameters that do not fit the statement.
    "22023": ProgrammingError,
    "42P02": ProgrammingError,
    "08": OperationalError,
    "0A": NotSupportedError,
    "22": DataError,
    "23": IntegrityError,
    "28": OperationalError,
    "3D": OperationalError,
    "3F": ProgrammingError,
    "40": OperationalError,
    "42": ProgrammingError,
    "53": OperationalError,
    "55": OperationalError,
    "57": OperationalError,
}


#: The library names the options of its command; here they are arguments.
_ARGUMENTS = {
    "--memory": "memory_bytes",
    "--duplicate-columns rename": 'duplicate_columns="rename"',
    "--numeric": "numeric",
    "--infinite": "infinite",
    "--table [SCHEMA.]NAME": "table",
    "--table NAME": "table",
    "--table": "table",
    "--mode upsert": 'mode="upsert"',
    "--mode": "mode",
    "--key COLUMN[,COLUMN...]": "key",
    "--key": "key",
}


def _as_arguments(text: str) -> str:
    for option, argument in _ARGUMENTS.items():
        text = text.replace(option, argument)
    return text


def from_native(fields: str, sqlstate: str | None) -> Error:
    """The exception for an error of the library, given as JSON."""
    known = json.loads(fields)
    kind = known["kind"]
    made = _BY_KIND.get(kind, DatabaseError)
    if kind == "source":
        # A statement that a source without SQLSTATE has refused is the author's mistake, too.
        by_class = _BY_SQLSTATE.get((sqlstate or "")[:2], ProgrammingError if known.get("position") else made)
        made = _BY_SQLSTATE.get(sqlstate or "", by_class)
    elif sqlstate == "0A000":
        made = NotSupportedError
    message = known.pop("message")
    # Other messages may quote a statement.
    error = made(_as_arguments(message) if kind == "usage" else message)
    if "hint" in known:
        known["hint"] = _as_arguments(known["hint"])
    error.sqlstate = sqlstate
    for name, value in known.items():
        setattr(error, name, value)
    return error


def wrong(made: type[Error], message: str, hint: str | None = None) -> Error:
    """An error of the package itself."""
    error = made(message)
    error.hint = hint
    return error
