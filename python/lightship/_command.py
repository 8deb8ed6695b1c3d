"""The ``lightship`` command."""

from __future__ import annotations

import signal
import sys

from lightship import _lightship


def main() -> None:
    # The command handles signals itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_lightship.run_command(["lightship", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
