"""The tensorflow-datasets builder `slca_tasks`: tasks of all splits as array_record files; tensorflow is not needed.

Each example is the JSON text of a task beside its id and kind: columns would unify the schemas of different tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow_datasets as tfds

from slca.tasks.datasets import task_to_dict
from slca.tasks.synthesize import SPLITS, tasks


class SlcaTasks(tfds.core.GeneratorBasedBuilder):
    """Tool-calling tasks made from schemas. sizes: split -> examples; seed and options as in `slca.tasks.synthesize.tasks`."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}  # noqa: RUF012  (tfds reads it from the class)

    def __init__(
        self, *, seed: int = 0, sizes: Mapping[str, int] | None = None, options: Mapping[str, Any] | None = None, **kwargs: Any
    ):
        self._seed, self._options = seed, dict(options or {})
        self._sizes = dict(sizes) if sizes is not None else dict.fromkeys(SPLITS, 1000)
        kwargs.setdefault("file_format", "array_record")  # the default, TFRecord, cannot be written without tensorflow
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"id": text, "kind": text, "task": text}),
            description="Tool-calling tasks with gold calls, facts and demonstrations.",
            metadata=tfds.core.MetadataDict({"seed": self._seed, "options": self._options}),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(split, n) for split, n in self._sizes.items()}

    def _generate_examples(self, split: str, n: int) -> Iterator[tuple[str, dict[str, str]]]:
        for task in tasks(self._seed, split, n, **self._options):
            yield task.id, {"id": task.id, "kind": task.kind, "task": json.dumps(task_to_dict(task), ensure_ascii=False)}
