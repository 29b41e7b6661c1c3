"""A MkDocs plugin that ties questions to answers, tests, figures and records."""
