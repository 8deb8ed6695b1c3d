"""DB-API 2.0 over the ADBC driver of Lightship."""

from __future__ import annotations

from typing import Any

from adbc_driver_manager import AdbcConnection
from adbc_driver_manager.dbapi import Connection

import adbc_driver_lightship


def connect(
    uri: str,
    db_kwargs: dict[str, str] | None = None,
    conn_kwargs: dict[str, str] | None = None,
    **kwargs: Any,
) -> Connection:
    """Opens a source: any URI that ``lightship fetch`` reads. Every statement is a transaction of its own."""
    database = adbc_driver_lightship.connect(uri, db_kwargs)
    try:
        connection = AdbcConnection(database, **(conn_kwargs or {}))
    except Exception:
        database.close()
        raise
    return Connection(database, connection, **{"autocommit": True, **kwargs})
