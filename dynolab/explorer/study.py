"""An opened study: its trainings and pairs, and another study's trainings beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from dynolab.explorer.training import Training


@dataclass(frozen=True)
class Study:
    """A study's trainings by name, and its training pairs by id."""

    name: str
    result: str
    trainings: Mapping[str, Training]
    pairs: Mapping[str, Example]
    data: str

    def beside(self, other: Study) -> Study:
        """This study with the trainings of another one on the same data, except those it shares.

        **Raises:** `ConfigError` for other data.
        """
        if other.data != self.data:
            raise ConfigError(
                "RESULT",
                other.result,
                f"was made of other rows ({other.data}) than {self.result} ({self.data}), so that "
                "no answer is in both; name studies on the same data",
            )
        results = {training.result for training in self.trainings.values()}
        added = {
            (name := f"{training.name} of {other.result}"): replace(
                training, name=name, study=other.result
            )
            for training in other.trainings.values()
            if training.result not in results
        }
        return replace(self, trainings={**self.trainings, **added})

    def training(self, name: str) -> Training:
        """A training by name; for a name that there is not, the study's own last one."""
        last = [training for training in self.trainings.values() if not training.study][-1]
        return self.trainings.get(name, last)
