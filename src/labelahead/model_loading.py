"""Load the model of an exported folder, a run or a labelling session."""

from pathlib import Path

from torch import nn

from labelahead.errors import InputError
from labelahead.learner.export import ExportedModel, load_exported
from labelahead.simulation.final_model import run_model

__all__ = ["load_model"]


def load_model(
    folder: str | Path,
    *,
    network: nn.Module | str | None = None,
    encoder: str | Path | None = None,
    device: str | None = None,
    trust_code: bool = False,
) -> ExportedModel:
    """Load a model from an exported folder, a run folder or a session folder.

    The model of a run is the network of its last round. The model of a session is fitted now on its
    labels. Both need the data they were made from. An exported folder needs nothing else, and no
    code in it is run.

    Args:
        folder: the folder of `export-model`, of `run --out`, or the labels of a labelling page.
        network: your own network if the model has one: the module, or its name `file.py:function`.
        encoder: of an exported model: where the folder of its pretrained encoder lies now, if it has
            moved. Its weights must be the same.
        device: where items of a run or a session are encoded and its model is fitted; default: as
            before. The model is then on the CPU; its method `to` moves it.
        trust_code: whether to run code that the folder of a run or a session names (a user's own
            network or embedding) although this account has never used it.

    Raises:
        InputError: if the folder holds no model, or names code that is not trusted.

    >>> import labelahead as la
    >>> done = la.run({"model": {"name": "exact"}, "budget": {"labels": 40}, "threads": 1}, out="run", forecast=False)
    >>> model = la.load_model("run")
    >>> from labelahead.data import load
    >>> len(model.predict(load("digits")[0].images.values[:3]).labels)
    3
    """
    path = Path(folder)
    if (path / "model.json").exists():
        return load_exported(path, network=network, encoder=encoder)
    if encoder is not None:
        raise InputError(f"encoder is for an exported model, but {path} is none; leave it out")
    if (path / "labels.db").exists():
        from labelahead.server.session import session_model

        return session_model(path, device=device, trust_code=trust_code)
    if (path / "config.toml").exists():
        if isinstance(network, nn.Module):
            raise InputError(
                "network is a torch.nn.Module; a run expects its name, file.py:function, to build "
                "a new one"
            )
        return run_model(path, network=network, device=device, trust_code=trust_code)
    raise InputError(
        f"{path} contains no model; expected a folder of `export-model`, `run --out` or a "
        "labelling session"
    )
