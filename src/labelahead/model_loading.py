"""One door for every folder that a model can come out of."""

from pathlib import Path

from torch import nn

from labelahead.errors import InputError
from labelahead.learner.export import ExportedModel, load_exported
from labelahead.simulation.final_model import run_model

__all__ = ["load_model"]


def load_model(
    folder: str | Path, *, network: nn.Module | str | None = None, trust_code: bool = False
) -> ExportedModel:
    """The model of an exported folder, a run's folder or a page's:
    `load_model(folder).predict("photos/")`.

    A run's network is that of its last round; of a page's labels one is learnt now. Both need the
    data that they were made from; an exported folder needs nothing else, and nothing in it is run.
    network: your own, where it is one, or its name, file.py:function.

    trust_code: whether code that the folder of a run or a page names (a network or an embedding of
    somebody's own) may run although this account has never used it. Without it such a folder is
    refused with an `InputError`.

    >>> import labelahead as la
    >>> done = la.run({"model": {"name": "exact"}, "budget": {"labels": 40}, "threads": 1}, out="run", outlook=False)
    >>> model = la.load_model("run")
    >>> from labelahead.data import load
    >>> len(model.predict(load("digits")[0].images.values[:3]).labels)
    3
    """
    path = Path(folder)
    if (path / "model.json").exists():
        return load_exported(path, network=network)
    if (path / "labels.db").exists():
        from labelahead.server.session_model import session_model

        return session_model(path, trust_code=trust_code)
    if (path / "config.toml").exists():
        if isinstance(network, nn.Module):
            raise InputError(
                "network is a torch.nn.Module; a run expects its name, file.py:function, to build "
                "it anew"
            )
        return run_model(path, network=network, trust_code=trust_code)
    raise InputError(
        f"{path} holds no model; expected the folder of `export-model`, of `run --out`, or the "
        "labels of a page"
    )
