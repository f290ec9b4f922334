"""The direction of imports: a module imports only from rooms above it (see CONTRIBUTING)."""

import ast
import importlib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import labelahead

PACKAGE = Path(labelahead.__file__).parent
ROOT = Path(__file__).parents[1]
ROOMS = (
    ("errors",),
    ("batching", "files", "processes", "seeds"),
    ("ntk",),
    ("gp",),
    ("acquisition",),
    ("data",),
    ("models",),
    ("inference",),
    ("strategies",),
    ("learner",),
    ("outofcore",),
    ("simulation",),
    ("server",),
    ("integrations", "model_loading"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: level for level, names in enumerate(ROOMS) for name in names}
_KERNELS = {"ntk", "acquisition"}
APART = {"data": _KERNELS, "models": _KERNELS | {"gp"}}


def modules() -> dict[str, Path]:
    """Every module by its dotted name without `labelahead.`; a package is its __init__."""
    paths = {
        ".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")
    }
    return {name.removesuffix("__init__").removesuffix("."): path for name, path in paths.items()}


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Modules of our own that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
    ours = {n.removeprefix("labelahead.") for n in names if n.startswith("labelahead.")}
    return {n if n in MODULES else n.rpartition(".")[0] for n in ours}


def room(path: Path) -> str:
    """The package, or the file at the top, that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_room():
    assert {room(p) for p in PACKAGE.rglob("*.py")} == set(FLOOR)


def test_imports_go_one_way():
    for path in PACKAGE.rglob("*.py"):
        here = room(path)
        for target in imports(path):
            other = target.split(".")[0]
            if other == here or other not in FLOOR:
                continue
            assert FLOOR[other] < FLOOR[here], f"{path.name} imports {target}"
            assert other not in APART.get(here, ()), f"{path.name} imports {target}"


def test_the_guide_says_who_imports_whom():
    listed = (ROOT / "CONTRIBUTING.md").read_text().split("```imports\n")[1].split("```")[0]
    said = {
        line.split()[0]: {n for n in line.split()[1:] if n != "-"} for line in listed.splitlines()
    }
    true = {name: set[str]() for name in FLOOR if not name.startswith("__")}
    for path in PACKAGE.rglob("*.py"):
        if room(path) in true:
            true[room(path)] |= {t.split(".")[0] for t in imports(path)} - {room(path), ""}
    assert said == true


NTK = [
    "layers",
    "premises",
    "recurrence",
    "capture",
    "order",
    "rules",
    "layout",
    "factors",
    "fallback",
    "plan",
    "gram",
    "terms",
    "engine",
    "kernels",
    "sketch",
    "norms",
    "infinite",
    "__init__",
]


def test_ntk_modules_are_layered():
    floor = {name: i for i, name in enumerate(NTK)}
    for path in (PACKAGE / "ntk").glob("*.py"):
        for target in imports(path):
            room, _, module = target.partition(".")
            if room == "ntk" and module:
                assert floor[module] < floor[path.stem], f"{path.name} imports {target}"


def test_functions_are_short():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                size = node.end_lineno - body[0].lineno if body else 0
                assert size <= 70, f"{path.name}:{node.name} has {size} lines without its docstring"


def test_no_two_modules_import_each_other_not_even_by_detours():
    known = modules()
    graph = {
        name: {t for t in imports(path) if t in known} - {name} for name, path in known.items()
    }
    assert cycle(graph) is None
    assert (
        cycle({**graph, "errors": {"cli.shell"}}) is not None
    )  # what reaches everything may reach nothing


def cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """Modules that import each other in a circle, if there are any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_no_function_hides_a_module_of_its_package():
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            package = importlib.import_module(f"labelahead.{name}".removesuffix("."))
            inside = {n.rpartition(".")[2] for n in MODULES if n.rpartition(".")[0] == name}
            hidden = [
                n
                for n in inside & set(vars(package))
                if not isinstance(vars(package)[n], ModuleType)
            ]
            assert not hidden, f"{name}: {hidden}"


def test_what_stands_beside_the_package_imports_what_there_is():
    """Benchmarks and the like are run too seldom to notice."""
    beside = [
        path
        for folder in ("research", "examples", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert beside
    for path in beside:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "labelahead"
            ):
                module = importlib.import_module(str(node.module))
                known = {
                    n.rpartition(".")[2]
                    for n in MODULES
                    if f"labelahead.{n}".rpartition(".")[0] == node.module
                }
                missing = [
                    a.name
                    for a in node.names
                    if a.name not in known and not hasattr(module, a.name)
                ]
                assert not missing, f"{path.name} imports {missing} from {node.module}"


def test_importing_the_package_does_nothing():
    import subprocess
    import sys

    code = (
        "import torch; s = torch.get_rng_state(); d = torch.get_default_dtype();"
        "import labelahead, logging; assert torch.equal(s, torch.get_rng_state());"
        "assert torch.get_default_dtype() == d; assert not logging.getLogger('labelahead').handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_product_never_imports_research():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "research" for name in names), path


def test_research_imports_public_names_only():
    for path in (ROOT / "research").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "labelahead"
            ):
                private = [a.name for a in node.names if a.name.startswith("_")]
                assert not private, f"{path.name} imports {private} from {node.module}"
