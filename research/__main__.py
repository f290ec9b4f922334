"""The research commands.

python -m research study [NAME]                  a study of the theory: figures, tables and a page
python -m research results run|page|forget       the tables behind docs/results.md
python -m research bench NAME [OPTIONS]          a benchmark against named competitors
python -m research attribution [OPTIONS]         the linear datamodelling score of attribution methods
python -m research behaviour record|compare      whether two versions of the code behave alike
"""

import runpy
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent / "benchmarks"


def main(arguments: list[str]) -> int:
    """Run one command; return its exit code."""
    command, *rest = arguments or ["--help"]
    if command == "study":
        from labelahead.processes import exit_on_sigint

        exit_on_sigint()
        from research.study_command import app

        app(rest)
    elif command == "results":
        from research.results.__main__ import main as results

        return results(rest)
    elif command == "bench" and rest and (BENCHMARKS / f"{rest[0]}.py").is_file():
        sys.argv = [f"research/benchmarks/{rest[0]}.py", *rest[1:]]
        sys.path.insert(0, str(BENCHMARKS))
        runpy.run_path(str(BENCHMARKS / f"{rest[0]}.py"), run_name="__main__")
    elif command == "behaviour":
        from research.behaviour import main as behaviour

        return behaviour(rest)
    elif command == "attribution":
        from research.attribution import main as attribution

        return attribution(rest)
    elif command in ("-h", "--help"):
        print(__doc__)
    else:
        print(
            f"there is no command {' '.join(arguments)!r}; expected one of these:\n{__doc__}",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
