"""The direction of imports: a module imports only from lower layers (see CONTRIBUTING)."""

import ast
import importlib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import labelahead

PACKAGE = Path(labelahead.__file__).parent
ROOT = Path(__file__).parents[1]
LAYERS = (
    ("errors",),
    ("batching", "devices", "files", "processes", "seeds"),
    ("ntk",),
    ("gp",),
    ("tasks",),
    ("acquisition",),
    ("data",),
    ("models", "audit"),
    ("attribution",),
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
LAYER_OF = {name: level for level, names in enumerate(LAYERS) for name in names}
_KERNELS = {"ntk", "acquisition"}
FORBIDDEN = {"gp": {"ntk", "models"}, "data": _KERNELS, "models": _KERNELS | {"gp"}}


def list_modules() -> dict[str, Path]:
    """Return dotted name without `labelahead.` -> path of every module; a package is its __init__."""
    paths = {
        ".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")
    }
    return {name.removesuffix("__init__").removesuffix("."): path for name, path in paths.items()}


MODULES = list_modules()


def list_imports(path: Path) -> set[str]:
    """Return the modules of labelahead that a file imports, at any level."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
    own = {n.removeprefix("labelahead.") for n in names if n.startswith("labelahead.")}
    return {n if n in MODULES else n.rpartition(".")[0] for n in own}


def top_package(path: Path) -> str:
    """Return the package, or the top-level file, that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_belongs_to_a_layer():
    assert {top_package(p) for p in PACKAGE.rglob("*.py")} == set(LAYER_OF)


def test_modules_import_from_lower_layers_only():
    for path in PACKAGE.rglob("*.py"):
        package = top_package(path)
        for target in list_imports(path):
            target_package = target.split(".")[0]
            if target_package == package or target_package not in LAYER_OF:
                continue
            assert LAYER_OF[target_package] < LAYER_OF[package], f"{path.name} imports {target}"
            assert target_package not in FORBIDDEN.get(package, ()), f"{path.name} imports {target}"


def test_contributing_guide_lists_the_imports_of_every_package():
    listed = (ROOT / "CONTRIBUTING.md").read_text().split("```imports\n")[1].split("```")[0]
    documented = {
        line.split()[0]: {n for n in line.split()[1:] if n != "-"} for line in listed.splitlines()
    }
    actual = {name: set[str]() for name in LAYER_OF if not name.startswith("__")}
    for path in PACKAGE.rglob("*.py"):
        if top_package(path) in actual:
            actual[top_package(path)] |= {t.split(".")[0] for t in list_imports(path)} - {
                top_package(path),
                "",
            }
    assert documented == actual


NTK = [
    "limits",
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
    "derivatives",
    "norms",
    "operators",
    "groups",
    "checkpoints",
    "storage",
    "infinite",
    "__init__",
]


def test_ntk_modules_are_layered():
    layer_of = {name: i for i, name in enumerate(NTK)}
    for path in (PACKAGE / "ntk").glob("*.py"):
        for target in list_imports(path):
            package, _, module = target.partition(".")
            if package == "ntk" and module:
                assert layer_of[module] < layer_of[path.stem], f"{path.name} imports {target}"


def test_functions_have_at_most_60_lines():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                size = node.end_lineno - body[0].lineno if body else 0
                assert size <= 60, f"{path.name}:{node.name} has {size} lines without its docstring"


def test_modules_have_no_import_cycle():
    modules_by_name = list_modules()
    graph = {
        name: {t for t in list_imports(path) if t in modules_by_name} - {name}
        for name, path in modules_by_name.items()
    }
    assert find_cycle(graph) is None
    assert find_cycle({**graph, "errors": {"cli.shell"}}) is not None  # a cycle is found


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return modules that import each other in a cycle, or None."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_package_attributes_hide_no_submodule():
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


def test_research_examples_and_docs_import_existing_names():
    """They run too rarely to notice a broken import otherwise."""
    paths = [
        path
        for folder in ("research", "examples", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert paths
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "labelahead"
            ):
                module = importlib.import_module(str(node.module))
                submodules = {
                    n.rpartition(".")[2]
                    for n in MODULES
                    if f"labelahead.{n}".rpartition(".")[0] == node.module
                }
                missing = [
                    a.name
                    for a in node.names
                    if a.name not in submodules and not hasattr(module, a.name)
                ]
                assert not missing, f"{path.name} imports {missing} from {node.module}"


def test_importing_the_package_has_no_side_effects():
    import subprocess
    import sys

    code = (
        "import torch; s = torch.get_rng_state(); d = torch.get_default_dtype();"
        "import labelahead, logging; assert torch.equal(s, torch.get_rng_state());"
        "assert torch.get_default_dtype() == d; assert not logging.getLogger('labelahead').handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_package_never_imports_research():
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


def test_every_module_has_a_test_file_of_its_name():
    """src/labelahead/a/b.py is tested by tests/a/test_b.py."""
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    tested = {m for m in modules if (ROOT / "tests" / m).with_name(f"test_{Path(m).name}").exists()}
    assert modules - tested == set(), "write a test file for these"


MAX_PARAMETERS = 8
# Functions with more parameters: `module function`. All are documented entry points for users of the
# library, and everything beyond their subject is keyword-only with a default: an options object
# would only move the names, and break the calls of every script. Nothing internal belongs here.
LONG_SIGNATURES = {
    "data/loading.py load",
    "learner/learner.py __init__",
    "models/image_encoder.py embed_images",
    "ntk/infinite.py infinite_kernel",
    "ntk/kernels.py kernel",
    "ntk/sketch.py features",
    "strategies/query.py propose",
}


def test_functions_have_few_parameters():
    """At most eight, without self; commands have one for each option."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if top_package(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                names = [a.arg for a in every if a.arg not in ("self", "cls")]
                if len(names) > MAX_PARAMETERS:
                    found.add(f"{path.relative_to(PACKAGE).as_posix()} {node.name}")
    assert found - LONG_SIGNATURES == set(), "group the parameters in a frozen dataclass"
    assert LONG_SIGNATURES - found == set(), "these are short: remove them from LONG_SIGNATURES"


def test_tests_patch_no_constant_of_the_package():
    """What a test has to shrink is a parameter."""
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "setattr" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
                *owner, name = [ast.unparse(a).strip("'") for a in node.args[:-1]]
                ours = "constants" not in owner  # of huggingface_hub, which has no parameters
                constant = name.rpartition(".")[2].isupper()
                assert not (ours and constant), f"{path.name}:{node.lineno} patches {name}"
