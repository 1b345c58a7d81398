"""Prefect's background services, with schedules that run under SQLAlchemy 2.1.

    python -m tasks.runtime.servers.prefect_schedules

is `prefect server services start` with them; a server with its services in it calls
`let_schedules_run` itself.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tasks.runtime.system.child import run_as_main


def let_schedules_run() -> None:
    """Has computed attributes in rows to insert ignored, as before SQLAlchemy 2.1.

    The scheduler of Prefect 3.8 inserts flow runs together with their `state`, which is no column
    but computed. Since 2.1 that is "Can't evaluate bulk DML statement", and no schedule ever runs
    (sqlalchemy.ext.hybrid, `hybrid_property.bulk_dml`).
    """
    from prefect.server.database.orm_models import Base
    from sqlalchemy.ext.hybrid import hybrid_property

    for mapper in Base.registry.mappers:
        for attribute in mapper.all_orm_descriptors:
            if isinstance(attribute, hybrid_property) and attribute.bulk_dml_setter is None:
                attribute.bulk_dml_setter = _ignored


def _ignored(cls: Any, mapping: MutableMapping[str, Any], value: Any) -> None:
    """Leaves the row as it is."""


if __name__ == "__main__":
    let_schedules_run()
    run_as_main("prefect", ["server", "services", "start"])
