"""Fuzzes one target with atheris: `python fuzz/run.py TARGET [CORPUS] [OPTION OF LIBFUZZER]...`; see README.md."""

import sys

import atheris

with atheris.instrument_imports(include=["smbroker", "targets"]):
    from targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"name a target: {', '.join(TARGETS)}")
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
