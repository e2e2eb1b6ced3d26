"""Claims: published statements, and how runs or published rows decide them; in the order select, estimate, judge."""
