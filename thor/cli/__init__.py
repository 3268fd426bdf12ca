"""The ``thor`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, with a clear line where its own libraries are missing."""
    try:
        from thor.cli.app import app

        app()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "matplotlib", "click"):
            raise
        print(f"error: the thor command needs {error.name}: pip install '.[cli]' in its checkout", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
