"""The paper's nine tables: networks trained on them, explained by NObSP and by others."""
