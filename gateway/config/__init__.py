"""From YAML to typed values; JSON Schema and reference pages from the same fields."""
