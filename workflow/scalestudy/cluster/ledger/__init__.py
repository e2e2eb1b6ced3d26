"""Use of jobs, from the executor's ledger.

`used.py` reads attempts, `waits.py` their time in the queue, and `actual.py` compares use with plan.
"""
