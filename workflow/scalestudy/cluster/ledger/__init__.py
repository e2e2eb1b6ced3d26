"""What jobs have used, from the executor's ledger.

`used.py` reads attempts and `waits.py` how long they queued; `spent.py` counts hours by project and period, `left.py` asks
what is left of a grant, `show_spent.py` prints both, and `actual.py` compares what was used with what was planned.
"""
