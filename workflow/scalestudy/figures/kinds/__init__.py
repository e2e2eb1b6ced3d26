"""One module per kind of figure, named as the kind: from rows to a chart."""
