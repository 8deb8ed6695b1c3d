"""Reads a table as Python rows through psqlODBC, with a cursor: odbc_rows.py URI TABLE [ROWS].

ROWS is the number of rows of one fetch from the cursor; 0, or none, leaves the driver's default.
"""

import sys
from urllib.parse import unquote, urlsplit

import pyodbc

from peer import measure


def settings(uri, rows):
    """The driver's connection string for a URI of PostgreSQL."""
    parts = urlsplit(uri)
    # Braces keep characters like `;` in a value; the driver takes them off its name and the password only.
    password = unquote(parts.password or "").replace("}", "}}")
    words = {
        "Driver": "{PostgreSQL Unicode}",
        "Server": parts.hostname,
        "Port": parts.port or 5432,
        "Database": unquote(parts.path.lstrip("/")),
        "UID": unquote(parts.username or ""),
        "PWD": f"{{{password}}}",
        # Without it, the driver reads the whole result at once.
        "UseDeclareFetch": 1,
    }
    if rows:
        words["Fetch"] = rows
    return ";".join(f"{name}={value}" for name, value in words.items())


connection = pyodbc.connect(settings(sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 0))


def work():
    rows = 0
    for _ in connection.execute(f"select * from {sys.argv[2]}"):
        rows += 1
    return rows, 0


measure(work)
