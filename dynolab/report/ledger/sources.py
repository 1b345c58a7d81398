"""What each source of mixed data did to the watched answers."""

from __future__ import annotations

from dynolab.data.rows import rows_by_source
from dynolab.report.page import Section, Words, table
from dynolab.report.text import number
from dynolab.results.ledger import LedgerReader

MOST = 12  # sources; ids with more beginnings than that are no names of sources


def sources_section(ledger: LedgerReader) -> Section | None:
    """Sources × means of answers: sums of lines in nats. None for a single source."""
    sources = rows_by_source(ledger.examples)
    means = [account for account in ledger.accounts if not account.row.single]
    if not 1 < len(sources) <= MOST or not means:
        return None
    did = [ledger.by_example(account.lines) for account in means]
    rows = [
        (source, len(places), *(number(float(own[places].sum()), sign=True) for own in did))
        for source, places in sources.items()
    ]
    head = ("source", "pairs", *(account.row.name for account in means))
    content = table(head, rows, "s" + "n" * (len(head) - 1))
    return Words("ledger.html", ledger=ledger).section("sources", content)
