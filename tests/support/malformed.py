"""JSON documents with a wrong or missing value at every node."""

import copy

WRONG_VALUES = (
    None,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"id": None},
    "",
    "x",
    "\ud800",
    0,
    -1,
    1.5,
    10**30,
    True,
    float("nan"),
)
MISSING = object()


def iter_paths(node, prefix=()):
    """Yield the path of every node of a JSON document, the root first."""
    yield prefix
    children = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, child in children:
        yield from iter_paths(child, (*prefix, key))


def replace_node(document, path, value):
    """Return a copy of the document with another value, or none, at a path."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    node = changed
    for key in path[:-1]:
        node = node[key]
    if value is MISSING:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


def iter_malformed(document):
    """Yield the document with each wrong value, and with a missing value, at each node."""
    for path in iter_paths(document):
        for value in (*WRONG_VALUES, *([MISSING] if path else [])):
            yield path, replace_node(document, path, value)
