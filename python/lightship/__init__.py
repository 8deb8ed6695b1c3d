"""Ships query results from databases, nodes and files, as Arrow data.

``read_sql`` returns a whole result; ``connect`` is DB-API 2.0 with Arrow; ``connect_async`` is the same for asyncio.
``copy`` and ``write`` write to files and tables.
"""

from __future__ import annotations

import atexit as _atexit

from lightship import _lightship
from lightship._aio import AsyncConnection, AsyncCursor, connect_async, read_sql_async
from lightship._api import Reader, Written, calibrate, copy, explain, read_sql, tune, write
from lightship._dbapi import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Connection,
    Cursor,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    apilevel,
    connect,
    paramstyle,
    threadsafety,
)
from lightship._errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from lightship._lightship import Batch, __version__
from lightship._records import Explanation, Plan, Profile, Record, Report

# A query that runs when Python ends is cancelled at its database.
_atexit.register(_lightship.shut_down)

__all__ = [
    "AsyncConnection",
    "AsyncCursor",
    "Batch",
    "Connection",
    "Cursor",
    "Explanation",
    "Plan",
    "Profile",
    "Reader",
    "Record",
    "Report",
    "Written",
    "calibrate",
    "connect",
    "connect_async",
    "copy",
    "explain",
    "read_sql",
    "read_sql_async",
    "tune",
    "write",
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Date",
    "DateFromTicks",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "apilevel",
    "paramstyle",
    "threadsafety",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "__version__",
]
