"""Runs the commands of a page as its reader does: in a folder, with a home, at a terminal, beside servers that run."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from conftest import POSTGRES, command, free_port, guarded

#: How long an event may take, in seconds.
PATIENCE = 30

#: Programs that run until they are stopped, and what they print when they are ready.
SERVERS = {
    "lightship node": "listening on ",
    "lightship netbench serve": "listening on ",
    "lightship agent": "sampling ",
    # The first sample of an agent that runs.
    "lightship usage watch": r"^\s*\S+ +(unavailable|[\d.]+ of)",
}

#: Hosts and places of the pages, and those of the tests; braces name what a reader knows.
PLACES = [
    (r"postgresql://me@(db|new|localhost)/shop", "{postgres}"),
    (r"mysql://me@(db|old)/shop", "{mysql}"),
    (r"/opt/duckdb/", "{drivers}/"),
    (r"/data/l\.csv", "{folder}/l.csv"),
    (r"LIGHTSHIP_TOKEN=\.\.\.", "LIGHTSHIP_TOKEN=$(cat tokens)"),
    (r"\bdb1\b", "localhost"),
    (r"\b10\.2\.1\.1\b", "localhost"),
    (r"\b3f2a\b", "{query}"),
    # Ports that are left out.
    (r"(lightship://(localhost|127\.0\.0\.1))(?![\w:])", r"\1:4270"),
    (r"^lightship node (?!.*--(listen|config) )", "lightship node --listen 127.0.0.1:4270 "),
    (r"(agent|watch --listen) 10\.0\.0\.1\b", r"\1 127.0.0.1:4270"),
    (r"(netbench (run|sweep) localhost)\b", r"\1:4271"),
    (r"(netbench serve --listen 0\.0\.0\.0)\b", r"\1:4271"),
]
PORT = re.compile(r"(?<=:)(42\d\d|43\d\d|5432)\b")

#: How a terminal shows colours and moves the cursor, and how a program asks it where the cursor is.
ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")
WHERE = "\x1b[6n"


class Server:
    """A program that runs, and the lines that it has printed."""

    def __init__(self, text: str, ports: set[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.text = text
        self.ports = ports
        self._lines: list[str] = []
        self._has_ended = False
        self._more = threading.Condition()
        # A session of its own, so that bash and its program can be ended together.
        self._process = subprocess.Popen(
            [*guarded(), "bash", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._has_ended = True
            self._more.notify_all()

    def says(self, pattern: str) -> None:
        """Waits for a line."""

        def found() -> bool:
            return any(re.search(pattern, line) for line in self._lines)

        with self._more:
            self._more.wait_for(lambda: found() or self._has_ended, PATIENCE)
            assert found(), f"`{self.text}` does not print `{pattern}`:\n{''.join(self._lines)}"

    def end(self) -> None:
        """Ends it as Ctrl-C does."""
        try:
            self._process.send_signal(signal.SIGINT)
            code = self._process.wait(PATIENCE)
        finally:
            self.kill()
        assert code == 0, f"`{self.text}` ended with {code}:\n{''.join(self._lines)}"

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Reader:
    """Where the commands of one page run."""

    def __init__(self, folder: Path, known: Mapping[str, str]) -> None:
        self.folder = folder / "work"
        self.known = {**known, "folder": str(self.folder)}
        self.servers: list[Server] = []
        self._ports: dict[str, str] = {}
        self.home = folder / "home"
        programs = folder / "bin"
        for made in (self.folder, self.home, programs):
            made.mkdir()
        named = os.environ.get("LIGHTSHIP_PROGRAM")
        words = " ".join(f"'{word}'" for word in ([named] if named else command()))
        (programs / "lightship").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / "lightship").chmod(0o755)
        _, host, port, _ = re.split(r"[@:/]+", known["postgres"].partition("://")[2])
        self.environment = {
            "PATH": f"{programs}:{POSTGRES[-1]}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "PAGER": "cat",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PGHOST": host,
            "PGPORT": port,
            "PGUSER": "me",
        }

    def port(self, shown: str) -> str:
        """The port that stands for one of the page."""
        if shown not in self._ports:
            self._ports[shown] = str(free_port())
        return self._ports[shown]

    def here(self, text: str) -> str:
        """A command or an output, with the hosts and ports of the test."""
        for place, other in PLACES:
            for name, value in self.known.items():
                other = other.replace(f"{{{name}}}", value)
            text = re.sub(place, other, text, flags=re.M)
        return PORT.sub(lambda found: self.port(found[0]), text)

    def serves(self, text: str) -> bool:
        return any(text.startswith(start) for start in SERVERS)

    def start(self, text: str) -> Server:
        """Starts a server, in place of those that have its ports, and waits until it is ready."""
        # The test runs it in the background, not bash.
        text = text.removesuffix(" &")
        ready = next(ready for start, ready in SERVERS.items() if text.startswith(start))
        text = self.here(text)
        ports = set(re.findall(r"--(?:listen|flight|postgres|http) \S+?:(\d+)", text))
        for file in re.findall(r"--config (\S+)", text):
            ports |= set(re.findall(r'"127.0.0.1:(\d+)"', (self.folder / file).read_text()))
        for server in [server for server in self.servers if server.ports & ports]:
            self.end(server)
        server = Server(text, ports, self.folder, self.environment)
        self.servers.append(server)
        server.says(ready)
        return server

    def end(self, server: Server) -> None:
        self.servers.remove(server)
        server.end()

    def end_all(self) -> None:
        """Ends the servers, the last one first."""
        while self.servers:
            self.end(self.servers[-1])

    def kill_all(self) -> None:
        for server in self.servers:
            server.kill()

    def run(self, text: str) -> tuple[int, str]:
        """Runs a command with pipes; returns its exit code and its output."""
        words = ["bash", "-c", self.here(text)]
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
            cwd=self.folder,
            env=self.environment,
        )
        return done.returncode, done.stdout

    def succeeds(self, text: str) -> str:
        code, output = self.run(text)
        assert code == 0, f"`{self.here(text)}` ended with {code}:\n{output}"
        return output

    def until(self, text: str, pattern: str) -> None:
        """Runs a command again and again, until it prints this."""
        deadline = time.monotonic() + PATIENCE
        output = ""
        while time.monotonic() < deadline:
            _, output = self.run(text)
            if re.search(pattern, output):
                return
            time.sleep(0.05)
        pytest.fail(f"`{self.here(text)}` never prints `{pattern}`:\n{output}")

    def run_at_terminal(self, text: str, typed: list[tuple[str, list[str]]]) -> tuple[int, str]:
        """Runs a command at a terminal. Each entry of `typed` is a line, and what is shown before the next one."""
        keyboard, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 60, 120, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", self.here(text)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            cwd=self.folder,
            env=self.environment,
        )
        os.close(terminal)
        raw = b""
        asked, answered = 0, 0
        waits_for: list[str] = ["> "] if typed else []
        steps = list(typed)
        since = 0
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                if not select.select([keyboard], [], [], max(0, deadline - time.monotonic()))[0]:
                    pytest.fail(f"`{self.here(text)}` does not end, or show {waits_for}:\n{screen(raw)}")
                try:
                    part = os.read(keyboard, 65536)
                except OSError:  # the terminal was closed
                    break
                raw += part
                shown = raw.decode(errors="replace")
                while shown.count(WHERE) > asked:
                    asked += 1
                    os.write(keyboard, b"\x1b[1;1R")
                # What is typed before the line editor asks where the cursor is would be shown by the terminal.
                # A line that is continued has no prompt of its own.
                is_asked = asked > answered or not waits_for
                if steps and is_asked and all(words in screen(raw[since:]) for words in waits_for):
                    line, waits_for = steps.pop(0)
                    since, answered = len(raw), asked
                    os.write(keyboard, f"{line}\r".encode())
            return process.wait(PATIENCE), screen(raw)
        finally:
            os.close(keyboard)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def screen(raw: bytes) -> str:
    """The lines of a terminal. A line that was written again is the last one."""
    text = ESCAPE.sub("", raw.decode(errors="replace")).replace("\r\n", "\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
