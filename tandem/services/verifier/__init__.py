"""The cloud's service: judges drafts of many sessions in packed passes, and decodes alone."""
