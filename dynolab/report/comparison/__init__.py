"""Pages that compare runs: remedies, groups, judges, the papers' findings and sweeps.

Each shows one table with a row for every run, with differences and their intervals by measure, and
the best row marked (`dynolab.report.tables`).
"""
