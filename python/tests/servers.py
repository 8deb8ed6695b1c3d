"""The node as its own program, and Java, for the tests of clients that are not ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import command, guarded

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "crates" / "cli" / "tests" / "clients"
TOKEN = "secret"

FLIGHT_JDBC = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
POSTGRES_JDBC = "org.postgresql:postgresql:42.7.8"


class Node(NamedTuple):
    """The addresses of a node, as `HOST:PORT`."""

    own: str
    flight: str
    postgres: str
    #: The number of its process.
    process: int

    def uri(self) -> str:
        return f"lightship://{TOKEN}@{self.own}"

    def postgres_uri(self) -> str:
        return f"postgresql://me:{TOKEN}@{self.postgres}/lightship"


@contextmanager
def serve(*tables: str) -> Iterator[Node]:
    """A node that answers all protocols. `LIGHTSHIP_PROGRAM` names the command; else it is that of the package."""
    named = os.environ.get("LIGHTSHIP_PROGRAM")
    words = [named] if named else command()
    protocols = [word for name in ("listen", "flight", "postgres") for word in (f"--{name}", "127.0.0.1:0")]
    process = subprocess.Popen(
        [*guarded(), *words, "--json", "node", *protocols, "--token", TOKEN, *tables],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        places = [ready["listening"][0], ready["flight"], ready["postgres"]]
        yield Node(*(place.partition("://")[2].partition("/")[0] for place in places), process.pid)
    finally:
        process.terminate()
        process.wait(10)


def jar(coordinates: str) -> Path:
    """A driver, which Maven downloads once."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: scripts/test-servers.sh installs it (openjdk-17-jdk-headless maven)")
    folder = Path(os.environ.get("LIGHTSHIP_JARS", ROOT / "target" / "jars"))
    _, artifact, version = coordinates.split(":")
    path = folder / f"{artifact}-{version}.jar"
    if not path.exists():
        words = ["dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"]
        run = subprocess.run(["mvn", "-q", "-B", *words], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            pytest.fail(f"mvn {' '.join(words)}: {run.stdout[-2000:]}")
    return path


def java(coordinates: str, script: str, *options: str) -> list[str]:
    """The command that runs a program of `SCRIPTS` with a driver."""
    opened = "--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED"
    return ["java", opened, *options, "-cp", str(jar(coordinates)), str(SCRIPTS / script)]
