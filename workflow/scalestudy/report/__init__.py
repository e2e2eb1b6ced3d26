"""What is handed on: the report's page, verdicts, comparisons, and a study packed as an RO-Crate."""
