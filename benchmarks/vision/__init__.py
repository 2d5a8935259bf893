"""Class activation maps judged by what deleting their regions does, beside gradient-based ones."""
