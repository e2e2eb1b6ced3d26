"""What is handed on: the report's page, verdicts and comparisons."""
