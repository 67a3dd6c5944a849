"""SWE-rebench, first and second edition, and SWE-bench-extra: SWE-bench's columns and how the environment is made.

The editions are told apart by `install_config`: that of the second names a `base_image_name`, and its images hold the
repository at `/NAME`; those of the first hold it at `/testbed`. What the row says of the environment is kept whole in
`recipe`, and the commands of it that a person would run in `install` and `test_command`.
"""

from dataclasses import replace
from typing import Any

from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.swe_bench import WORKDIR, issue_row, own_image
from engine.tasks.rows.values import Raw, canonical

_RECIPE = ("install_config", "requirements", "environment")


def read_swe_rebench(raw: Raw) -> TaskRow:
    """A row of either edition."""
    config = raw.inner("install_config")
    second = config.has("base_image_name")
    workdir = f"/{raw.text('repo').rpartition('/')[2]}" if second else WORKDIR
    row = issue_row(raw, "swe_rebench", image=own_image(raw), workdir=workdir)
    config = raw.inner("install_config")  # once more: its errors now name the id
    if not config.has("test_cmd"):
        raise config.wrong("test_cmd", None, "is missing", "add the command that runs the tests, or leave the row out")
    told: dict[str, Any] = {column: raw.value(column) for column in _RECIPE[1:]}
    return replace(
        row,
        recipe=canonical({"install_config": raw.mapping("install_config"), **told}),
        install=(*config.texts("pre_install"), *config.texts("install")),
        test_command=config.texts("test_cmd"),
        log_parser=config.optional("log_parser"),
    )
