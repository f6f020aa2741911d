"""What model calls cost: every token read from the replies as they pass, kept by run, and null where nobody measured.

``usage`` reads counts from replies, ``tap`` is the reverse proxy through which they come, ``store`` keeps one row a
request, ``spans`` binds the calls of an episode to its run, ``totals`` says what a run used. Nothing here knows of
agents or pytest, and nothing is imported before a run needs it.
"""
