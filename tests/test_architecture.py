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


# Modules that are tested through others, and have no test file of their own yet. Remove a module
# from this list when it gets one; the list must not grow.
UNTESTED_MODULES = {
    "acquisition/pool_view.py",
    "cli/catalogue.py",
    "cli/label.py",
    "cli/label_studio.py",
    "cli/models.py",
    "cli/pool.py",
    "cli/shell.py",
    "cli/terminal.py",
    "data/arrays.py",
    "data/classes.py",
    "data/columns.py",
    "data/loading.py",
    "data/new_items.py",
    "data/preprocessing.py",
    "gp/covariance.py",
    "inference/network.py",
    "integrations/label_studio/client.py",
    "integrations/label_studio/connection.py",
    "integrations/label_studio/image_text.py",
    "integrations/label_studio/tasks.py",
    "learner/labelling_query.py",
    "learner/model_card.py",
    "learner/onnx.py",
    "learner/preparation.py",
    "model_loading.py",
    "models/catalogue.py",
    "models/feature_cache.py",
    "models/layers.py",
    "models/training/forward.py",
    "models/training/objective.py",
    "models/training/settings.py",
    "ntk/capture.py",
    "ntk/factors.py",
    "ntk/fallback.py",
    "ntk/gram.py",
    "ntk/layout.py",
    "ntk/order.py",
    "ntk/plan.py",
    "ntk/recurrence.py",
    "ntk/rules.py",
    "ntk/sketch.py",
    "ntk/terms.py",
    "outofcore/partitions.py",
    "server/fitting.py",
    "server/huggingface.py",
    "server/items.py",
    "server/label_state.py",
    "server/label_studio_tasks.py",
    "server/progress.py",
    "server/routes.py",
    "server/schedule.py",
    "server/snapshot.py",
    "server/worker.py",
    "simulation/comparison/curves.py",
    "simulation/comparison/figures.py",
    "simulation/comparison/plan.py",
    "simulation/comparison/plot_style.py",
    "simulation/comparison/summary.py",
    "simulation/comparison/tables.py",
    "simulation/final_model.py",
    "simulation/loop.py",
    "simulation/tracking.py",
    "strategies/base.py",
    "strategies/bayesian.py",
    "strategies/context.py",
    "strategies/diversity.py",
    "strategies/fisher.py",
    "strategies/lookahead.py",
    "strategies/query.py",
    "strategies/retraining.py",
    "strategies/uncertainty.py",
}


def test_every_module_has_a_test_file_of_its_name():
    """src/labelahead/a/b.py is tested by tests/a/test_b.py."""
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    tested = {m for m in modules if (ROOT / "tests" / m).with_name(f"test_{Path(m).name}").exists()}
    assert modules - tested - UNTESTED_MODULES == set(), "write a test file for these"
    assert UNTESTED_MODULES & tested == set(), "these have one: remove them from UNTESTED_MODULES"
    assert modules >= UNTESTED_MODULES, "these do not exist"
    assert len(UNTESTED_MODULES) <= 71


MAX_PARAMETERS = 8
# Functions with more parameters: `module function`. Remove a function from this list when its
# parameters are grouped; the list must not grow.
LONG_SIGNATURES = {
    "data/arrays.py build_dataset",
    "data/arrays.py build_from_tensor",
    "data/loading.py load",
    "models/image_encoder.py embed_images",
    "ntk/infinite.py _compute_conv_kernel",
    "ntk/infinite.py infinite_kernel",
    "ntk/kernels.py kernel",
    "ntk/recurrence.py _can_unfuse",
    "ntk/recurrence.py _run_lstm",
    "ntk/recurrence.py forward",
    "outofcore/store.py embed",
    "server/session.py open_session",
    "simulation/run.py resume",
    "simulation/run.py run",
    "strategies/query.py propose",
}


def test_functions_have_few_parameters():
    """At most eight, without self; commands have one for each option."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if room(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                names = [a.arg for a in every if a.arg not in ("self", "cls")]
                if len(names) > MAX_PARAMETERS:
                    found.add(f"{path.relative_to(PACKAGE).as_posix()} {node.name}")
    assert found - LONG_SIGNATURES == set(), "group the parameters in a frozen dataclass"
    assert LONG_SIGNATURES - found == set(), "these are short: remove them from LONG_SIGNATURES"
