"""What is handed on: the report's page, verdicts, comparisons, trends, and a study packed as an RO-Crate."""
