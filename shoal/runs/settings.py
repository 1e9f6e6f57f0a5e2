"""The settings of a run: a dataclass that is config.json at once; read back, and compared with the checkpoint's."""

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from shoal.algorithms.config import as_declared
from shoal.errors import UserError, check_names, check_range
from shoal.runs import disk
from shoal.runs.folder import CONFIG

if TYPE_CHECKING:
    from shoal.runs.checkpoint import Checkpoint

Stored = TypeVar("Stored", bound="StoredConfig")


@dataclass(frozen=True)
class StoredConfig:
    """A configuration that a run folder holds: checked, with a JSON form."""

    result_independent: ClassVar = frozenset({"out", "threads"})
    """Settings that may differ when a run is resumed: its folder and hardware."""
    changeable: ClassVar = frozenset[str]()
    """Settings that a resume may change for the rest of the run."""
    before: ClassVar = MappingProxyType[str, Any]({})
    """What runs did that were stored before a setting existed, where that is not the default."""
    ranges: ClassVar[Mapping[str, tuple[float, float | None]]] = {}
    """Smallest and largest values of settings; None: no limit."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Suggest a setting in place of an unknown one."""
        check_names(cls.__name__, settings, [field.name for field in dataclasses.fields(cls)])
        return super().__new__(cls)

    @classmethod
    def stored(cls, fields: Mapping[str, Any]) -> Self:
        """The configuration with these stored settings."""
        return cls(**{**cls.before, **fields})

    def checked(self) -> Self:
        """The same settings in their declared types; a `UserError` for the first invalid one."""
        config = as_declared(self)
        config.check()
        return config

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting."""
        for name, (low, high) in self.ranges.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, low, high)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that determine a run's results, as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return {name: value for name, value in values.items() if name not in self.result_independent}

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(disk.sealed(dataclasses.asdict(self)), indent=2) + "\n"

    def defaults(self) -> Self:
        """The configuration with nothing but defaults."""
        return type(self)()

    def asked(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """The settings that a resume asks for: those of these names; None: all that differ from their defaults."""
        config, defaults = as_declared(self), self.defaults()
        if isinstance(names, str):
            raise UserError(f"`asked` must be a list of settings, but is '{names}'; write asked=['{names}'].")
        if names is None:
            names = [name for name, value in vars(config).items() if value != getattr(defaults, name)]
        for name in names:
            if not hasattr(config, name):
                raise UserError(f"`asked` has '{name}', which is not a setting of {type(self).__name__}.")
        return {name: getattr(config, name) for name in names}

    def resumed(self, asked: Mapping[str, Any], checkpoint: "Checkpoint | None") -> Self:
        """The stored settings with the changes that a resume asks for."""
        names = (self.changeable | self.result_independent) & asked.keys()
        return dataclasses.replace(self, **{name: asked[name] for name in names}).checked()

    def extends(self, checkpoint: "Checkpoint") -> bool:
        """Whether a run that was finished with the settings in its checkpoint has more to do with these."""
        return False


def check_kept(asked: Mapping[str, Any], stored: StoredConfig, folder: Path) -> None:
    """Refuse to resume with other settings than the run's, except for those that may change."""
    for name, value in asked.items():
        kept = getattr(stored, name)
        if name == "update" and value == "auto":  # whatever the run has
            continue
        if name not in stored.result_independent | stored.changeable and value != kept:
            given, had = (" ".join(map(str, each)) if isinstance(each, tuple) else each for each in (value, kept))
            raise UserError(
                f"`{name}` is {given}, but the run in '{folder}' has {had}: a resumed run keeps its settings."
            )


def check_settings(config: StoredConfig, folder: Path, checkpoint: "Checkpoint | None") -> None:
    """Refuse a config.json that differs from the settings that the run was trained with.

    Before the first checkpoint only its own checksum can be checked; later a file repaired by hand is accepted.
    """
    path = folder / CONFIG
    try:
        disk.unsealed(read_fields(folder))
        sealed = True
    except ValueError as error:
        if checkpoint is None:
            raise UserError(f"'{path}' is damaged: {error}; restore a copy, or train into another folder.") from None
        sealed = False
    if checkpoint is None:
        return
    settings, trained = config.settings, config.stored(checkpoint.meta["settings"]).settings
    changed = [name for name in settings if settings[name] != trained[name]]
    if changed and not (config.changeable.issuperset(changed) and sealed):  # a resume may have changed them
        text = partial(json.dumps, ensure_ascii=False)
        values = ", ".join(f"{name} is {text(settings[name])} instead of {text(trained[name])}" for name in changed)
        source = checkpoint.path / "meta.json" if checkpoint.path.is_dir() else checkpoint.path
        raise UserError(f"'{path}' is damaged: {values}; restore what '{source}' says the run was trained with.")


def read_settings(folder: Path, kind: type[Stored]) -> Stored:
    """The configuration of a run folder, of this kind; `check_settings` compares it with the checkpoint's."""
    path = folder / CONFIG
    fields = read_fields(folder)
    fields.pop(disk.SEAL, None)
    if unknown := fields.keys() - {field.name for field in dataclasses.fields(kind)}:
        raise UserError(
            f"'{path}' has the unknown setting '{min(unknown)}': it is damaged, or from another command or version of "
            f"Shoal{_also_in(folder)}."
        )
    try:
        return kind.stored(fields).checked()
    except UserError as error:
        raise UserError(f"'{path}' cannot be used: {str(error).rstrip('.')}{_also_in(folder)}.") from None


def read_fields(folder: Path) -> dict[str, Any]:
    """The contents of config.json, unchecked."""
    path = folder / CONFIG
    try:
        if folder.is_file():
            raise UserError(f"'{folder}' is a file, but must be a run folder.")
        if not folder.is_dir():
            raise UserError(f"There is no run folder '{folder}'.")
        if not path.exists():
            raise UserError(f"'{folder}' is not a run folder: it has no {CONFIG}{_also_in(folder)}.")
        fields = json.loads(disk.read(path))
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except (disk.Damaged, ValueError, RecursionError) as error:
        raise UserError(f"'{path}' cannot be read: {error}{_also_in(folder)}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"'{path}' does not hold a JSON object{_also_in(folder)}.")
    return fields


def _also_in(folder: Path) -> str:
    """Where else the settings of a run are, for repairing its config.json."""
    copies = sorted(folder.glob("checkpoints/[0-9]*/meta.json"))
    return f"; the run's settings are also in '{copies[-1]}'" if copies else ""
