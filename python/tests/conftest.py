"""Sources for the tests: a file, a SQLite database, a node, and a PostgreSQL server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.Popen[str]"]

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Profiles of the tests are not those of the user."""
    os.environ["LIGHTSHIP_PROFILES"] = str(tmp_path_factory.mktemp("profiles"))


@pytest.fixture(scope="session")
def sales(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files") / "sales.csv"
    path.write_text("region,amount\nnorth,3\nsouth,4\nnorth,5\n")
    return str(path)


@pytest.fixture(scope="session")
def sqlite_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sqlite") / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("create table item (id integer primary key, name text, price real)")
        database.executemany("insert into item values (?, ?, ?)", [(1, "pen", 1.5), (2, "ink", None)])
    return f"sqlite:{path}"


def command() -> list[str]:
    """The `lightship` command that belongs to the package."""
    return [sys.executable, "-m", "lightship._command"]


def guarded() -> list[str]:
    """Ends a server if the tests die."""
    return ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []


def free_port() -> int:
    """A port that nobody listens on, and that no connection gets: the system takes those from 32768 on by itself."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("", port))
            return port


@pytest.fixture(scope="session")
def node() -> Iterator[str]:
    process = subprocess.Popen(
        [*guarded(), *command(), "--json", "node", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["listening"][0]
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    if not POSTGRES:
        pytest.skip("PostgreSQL is not installed")
    # Not in pytest's folder, which the server's user can't enter.
    folder = Path(tempfile.mkdtemp(prefix="lightship-py.", dir="/tmp"))
    as_user: list[str] = []
    if os.getuid() == 0:
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(folder, "postgres", "postgres")
    programs = POSTGRES[-1]
    made = [
        programs / "initdb",
        "-U",
        "me",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "-N",
        "-D",
        folder / "data",
    ]
    subprocess.run([*as_user, *map(str, made)], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    port = free_port()
    settings = [
        f"port={port}",
        "listen_addresses=127.0.0.1",
        "fsync=off",
        "shared_buffers=32MB",
        f"unix_socket_directories={folder}",
    ]
    words = [str(programs / "postgres"), "-D", str(folder / "data")]
    for setting in settings:
        words += ["-c", setting]
    server = subprocess.Popen(
        [*(guarded() + as_user[1:] if as_user else guarded()), *words], stderr=subprocess.DEVNULL, cwd=folder
    )
    for _ in range(200):
        ready = subprocess.run([programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)], check=False)
        if ready.returncode == 0:
            break
        time.sleep(0.05)
    yield f"postgresql://me@127.0.0.1:{port}/postgres"
    server.send_signal(signal.SIGINT)
    server.wait(20)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mysql() -> Iterator[str]:
    """The database `shop` of a MariaDB server."""
    if shutil.which("mariadb-install-db") is None:
        pytest.fail("MariaDB is missing: scripts/test-servers.sh installs it (mariadb-server)")
    # Not in pytest's folder, which the server's user can't enter.
    folder = Path(tempfile.mkdtemp(prefix="lightship-py.", dir="/tmp"))
    options = [f"--datadir={folder / 'data'}", f"--tmpdir={folder}", "--innodb-flush-log-at-trx-commit=0"]
    options += ["--innodb-doublewrite=0", "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=16M"]
    if os.getuid() == 0:
        options.append("--user=mysql")
        shutil.chown(folder, "mysql")
    install = ["mariadb-install-db", "--no-defaults", *options, "--auth-root-authentication-method=normal"]
    subprocess.run([*install, "--skip-test-db", "--skip-name-resolve"], check=True, capture_output=True)
    at = f"--socket={folder / 'socket'}"
    port = free_port()
    program = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
    options += [at, f"--port={port}", f"--pid-file={folder / 'pid'}", f"--log-error={folder / 'log'}"]
    options += ["--bind-address=127.0.0.1", "--skip-name-resolve", "--performance-schema=0"]
    server = subprocess.Popen([*guarded(), program, "--no-defaults", *options], stderr=subprocess.DEVNULL, cwd=folder)
    made = "create database shop; create user me@'%'; grant all on *.* to me@'%'"
    deadline = time.monotonic() + 60
    words = ["mariadb", "--no-defaults", "--user=root", at, "-e", made]
    while subprocess.run(words, check=False, capture_output=True).returncode != 0:
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
    yield f"mysql://me@127.0.0.1:{port}/shop"
    server.terminate()
    server.wait(20)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def psql(postgres: str) -> Callable[[str], None]:
    """Runs statements that Lightship does not."""
    program = POSTGRES[-1] / "psql"
    return lambda sql: subprocess.run([program, "-q", postgres, "-c", sql], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Runs a program with Python."""

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    return run


def ended(process: subprocess.Popen[str], timeout: float = 30) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"it did not end: {out} {err}")
    return process.returncode, out, err
