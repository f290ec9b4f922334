"""The direction of imports: a module imports only from rooms above it (see CONTRIBUTING)."""

import ast
from pathlib import Path

import labelahead

PACKAGE = Path(labelahead.__file__).parent
ROOMS = (
    ("errors",),
    ("linalg", "checks"),
    ("tangent",),
    ("covariance",),
    ("posterior",),
    ("flow", "residuals", "dynamics", "regression"),
    ("lookahead",),
    ("acquisition",),
    ("select",),
    ("pool", "data", "models"),
    ("train",),
    ("situation",),
    ("strategy",),
    ("propose",),
    ("learner", "config", "store"),
    ("advice", "tracking"),
    ("loop",),
    ("prepare",),
    ("campaign",),
    ("query", "show", "client"),
    ("study", "web"),
    ("laboratory",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: level for level, names in enumerate(ROOMS) for name in names}
_KERNELS = {"tangent", "covariance", "posterior", "lookahead", "acquisition", "select"}
APART = {
    "tangent": {"linalg", "checks"},  # may be used alone: knows only errors
    "data": _KERNELS,  # side rooms: they know nothing of kernels
    "models": _KERNELS,
    "train": _KERNELS,
    "pool": _KERNELS,
}
TANGENT = (
    "premises", "capture", "rules", "layout", "factors", "plan", "fallback", "gram", "terms",
    "engine", "kernel", "sketch", "norms", "duals", "infinite_conv", "infinite", "__init__",
)  # fmt: skip


def imports(path: Path) -> set[str]:
    """Dotted names of our own that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"{path}: relative import")
    return {f.removeprefix("labelahead.") for f in found if f.startswith("labelahead.")}


def test_every_module_has_a_room():
    names = {p.stem if p.parent == PACKAGE else p.parent.name for p in PACKAGE.rglob("*.py")}
    assert names - set(FLOOR) == set()


def test_imports_go_one_way():
    for path in PACKAGE.rglob("*.py"):
        room = path.stem if path.parent == PACKAGE else path.parent.name
        for target in imports(path):
            other = target.split(".")[0]
            if other == room or other not in FLOOR:
                continue
            assert FLOOR[other] < FLOOR[room], f"{path.name} imports {target}"
            assert other not in APART.get(room, ()), f"{path.name} imports {target}"


def test_the_tangent_room_is_layered_too():
    floor = {name: i for i, name in enumerate(TANGENT)}
    for path in (PACKAGE / "tangent").glob("*.py"):
        for target in imports(path):
            room, _, module = target.partition(".")
            module = module.split(".")[0]
            if room == "tangent" and module in floor:
                assert floor[module] < floor[path.stem], f"{path.name} imports {target}"


def test_files_and_functions_stay_small():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 300, f"{path.name} has more than 300 lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                size = node.end_lineno - node.lineno
                assert size <= 60, f"{path.name}:{node.name} has {size} lines"


def test_importing_the_package_does_nothing():
    import subprocess
    import sys

    code = (
        "import torch; s = torch.get_rng_state(); d = torch.get_default_dtype();"
        "import labelahead, logging; assert torch.equal(s, torch.get_rng_state());"
        "assert torch.get_default_dtype() == d; assert not logging.getLogger('labelahead').handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
