"""DuckDB with extensions from their Python packages; DuckDB checks their signatures."""

import glob
import importlib
import os

import duckdb


def connect(*extensions):
    """A database in memory with these extensions loaded."""
    database = duckdb.connect()
    for name in extensions:
        package = importlib.import_module(f"duckdb_extension_{name}")
        folder = os.path.dirname(package.__file__)
        path = glob.glob(f"{folder}/extensions/v{duckdb.__version__}/*.duckdb_extension")[0]
        database.execute(f"load '{path}'")
    return database
