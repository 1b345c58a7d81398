"""Fixes Prefect's scheduled runs under SQLAlchemy 2.1.

    python -m tasks.runtime.servers.prefect_schedules

is `prefect server services start` with the fix. A server that runs its services in its own process
calls `let_schedules_run` itself.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tasks.runtime.system.child import run_as_main


def let_schedules_run() -> None:
    """Make bulk inserts ignore computed attributes, as before SQLAlchemy 2.1.

    The scheduler of Prefect 3.8 inserts flow runs with their `state`, which is not a column but
    a hybrid property. SQLAlchemy 2.1 rejects that ("Can't evaluate bulk DML statement"), so that
    no schedule ever runs (sqlalchemy.ext.hybrid, `hybrid_property.bulk_dml`).
    """
    from prefect.server.database.orm_models import Base
    from sqlalchemy.ext.hybrid import hybrid_property

    for mapper in Base.registry.mappers:
        for attribute in mapper.all_orm_descriptors:
            if isinstance(attribute, hybrid_property) and attribute.bulk_dml_setter is None:
                attribute.bulk_dml_setter = _ignored


def _ignored(cls: Any, mapping: MutableMapping[str, Any], value: Any) -> None:
    """Leave the row unchanged."""


if __name__ == "__main__":
    let_schedules_run()
    run_as_main("prefect", ["server", "services", "start"])
