"""Parts of networks: circuits that are known, and networks made smaller."""
